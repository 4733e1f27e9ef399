// The rule of a virtual machine: numbers by name, read once from the file that VIRTUAL_GPU_RULE names.
//
// A line is `name value`. A name may have an operation and a device behind it, and the most specific line counts:
//
//     bus_gbps 400                  every collective
//     latency_us.all_gather 15      one operation
//     bus_gbps@1 100                with device 1: a collective is as fast as its slowest device
//     latency_us.all_reduce@1 212   both
//     latency_us.all_reduce.tree.ll 5   as NCCL_ALGO and NCCL_PROTO tell it; `chosen tree.ll` if they say nothing
//
// What a file leaves out has the value that stands in DEFAULTS. `#` begins a comment.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace virtual_gpu {

inline const std::map<std::string, double> DEFAULTS = {
    {"gpus", 8},           // devices of this host
    {"memory_gib", 4},     // of a device
    {"major", 9},          // compute capability
    {"minor", 0},
    {"multicast", 1},      // whether NVLink multicast is supported
    {"nvlinks", 18},       // links that are up, and what NVML says of their version: an enum, 7 is NVLink 5
    {"nvlink_version", 6},
    {"latency_us", 12},    // of a collective, to which the bytes on the wire over bus_gbps are added
    {"bus_gbps", 400},
    {"copy_us", 2},        // of a copy, to which its bytes over copy_gbps are added
    {"copy_gbps", 1500},
    {"memory_mhz", 2619},  // what NVML says of the memory's clock
    {"kernel_us", 2},      // of any other operation of ATen
    {"launch_us", 4},      // from the call to the earliest start on an idle stream
    {"late_us", 0},        // by which a device begins later than that where its stream was idle
    {"enqueue_us", 0},     // what the host needs besides to enqueue a collective
    {"ghz", 1.98},         // the clock of a device; it rises from ghz_low within rise_s where that is given
    {"ghz_low", 0},
    {"rise_s", 1},
    {"nccl_version", 23007},
    {"flip_call", 0},      // the n-th call of an operation on a communicator has one wrong element (from 1; 0: none)
    {"flip_every", 0},     // the same of every n-th call
    {"flip_captured", 0},  // the same of every call that is captured in a graph
    {"error_call", 0},     // it returns ncclSystemError
    {"async_error_call", 0},  // it never ends, and the communicator tells ncclRemoteError
    {"throttle", 0},       // NVML's bits of what holds the clock back
    {"timed_data", 1},     // 0: timed calls move no bytes where the suite checks other ones (`buffers: reused`)
    {"query_ms", 20},      // longest time for which the host waits for bytes when it only asks for an event
};

class Rule {
  public:
    static const Rule& get() {
        static const Rule rule;
        return rule;
    }
    // The number for a device, or for any if it is negative.
    double number(const std::string& name, int device = -1, const std::string& operation = "") const {
        const std::string at = "@" + std::to_string(device);
        for (const std::string& behind : {at, std::string()}) {
            for (std::string of = "." + operation;; of.resize(of.rfind('.'))) {
                if (auto found = texts_.find(name + of + behind); found != texts_.end()) return atof(found->second.c_str());
                if (of.empty()) break;
            }
        }
        return DEFAULTS.at(name);
    }
    std::string text(const std::string& name, const std::string& usual) const {
        auto found = texts_.find(name);
        return found == texts_.end() ? usual : found->second;
    }
    // By these words CollBench knows that times are not those of hardware (bench/analyze/sessions.py).
    std::string gpu_name() const {
        const std::string called = text("name", "");
        const std::string idle = number("timed_data") ? "" : ", timed calls move no bytes";
        return (called.empty() ? "Virtual GPU" : "Virtual GPU, " + called) + idle;
    }
    int gpus() const { return static_cast<int>(number("gpus")); }
    size_t memory() const { return static_cast<size_t>(number("memory_gib") * (1ull << 30)); }

  private:
    Rule() {
        const char* path = getenv("VIRTUAL_GPU_RULE");
        std::ifstream file(path ? path : "/dev/null");
        if (!file) {
            fprintf(stderr, "virtual GPU: VIRTUAL_GPU_RULE: %s cannot be read\n", path);
            abort();
        }
        for (std::string line; std::getline(file, line);) {
            std::istringstream words(line.substr(0, line.find('#')));
            std::string name, value;
            if (!(words >> name)) continue;
            std::getline(words >> std::ws, value);
            const std::string base = name.substr(0, name.find_first_of(".@"));
            if (!DEFAULTS.count(base) && base != "name" && base != "ledger" && base != "chosen") {
                fprintf(stderr, "virtual GPU: %s: no such rule: %s\n", path, name.c_str());
                abort();
            }
            texts_[name] = value.substr(0, value.find_last_not_of(" \t\r") + 1);
        }
    }
    std::map<std::string, std::string> texts_;
};

inline double number(const char* name, int device = -1, const char* operation = "") {
    return Rule::get().number(name, device, operation);
}

// A number of this host, from its name: GPUs of several hosts have different UUIDs.
inline unsigned host() {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return static_cast<unsigned>(std::hash<std::string>()(name));
}

}  // namespace virtual_gpu
