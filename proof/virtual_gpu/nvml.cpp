// NVML (libnvidia-ml.so.1) as far as bench/machine/gpus.py asks it. A function that is not here is "not supported" to
// nvidia-ml-py. The devices are those of the rule; a handle is the device's number, from 1.
#include <time.h>

#include <cstring>

#include "rule.hpp"

using virtual_gpu::number;
using virtual_gpu::Rule;

namespace {
constexpr int SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6;
using Handle = void*;

int device_of(Handle handle) { return static_cast<int>(reinterpret_cast<long>(handle)) - 1; }
Handle handle_of(int device) { return reinterpret_cast<Handle>(device + 1L); }

double uptime_s() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

template <class Value, class Given>
int give(Value* value, Given given) {
    *value = static_cast<Value>(given);
    return SUCCESS;
}

int text(char* to, unsigned length, const char* given) {
    snprintf(to, length, "%s", given);
    return SUCCESS;
}
}  // namespace

struct Memory {
    unsigned long long total, free, used;
};

extern "C" {

int nvmlInit_v2() { return SUCCESS; }
int nvmlInitWithFlags(unsigned) { return SUCCESS; }
int nvmlShutdown() { return SUCCESS; }
const char* nvmlErrorString(int) { return "Not Supported"; }
int nvmlSystemGetDriverVersion(char* to, unsigned length) { return text(to, length, "580.00"); }
int nvmlSystemGetCudaDriverVersion(int* version) { return give(version, 13000); }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return give(version, 13000); }

int nvmlDeviceGetCount_v2(unsigned* count) { return give(count, Rule::get().gpus()); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
    if (static_cast<int>(index) >= Rule::get().gpus()) return INVALID;
    return give(handle, handle_of(index));
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, Handle* handle) {
    const char* colon = strchr(address, ':');
    const int bus = colon ? static_cast<int>(strtol(colon + 1, nullptr, 16)) : 0;
    return bus < 1 || bus > Rule::get().gpus() ? NOT_FOUND : give(handle, handle_of(bus - 1));
}

int nvmlDeviceGetIndex(Handle handle, unsigned* index) { return give(index, device_of(handle)); }

int nvmlDeviceGetUUID(Handle handle, char* to, unsigned length) {
    snprintf(to, length, "GPU-%08x-0000-0000-0000-%012x", virtual_gpu::host(), device_of(handle) + 1);
    return SUCCESS;
}

int nvmlDeviceGetName(Handle, char* to, unsigned length) {
    return text(to, length, Rule::get().gpu_name().c_str());
}

int nvmlDeviceGetMemoryInfo(Handle, Memory* memory) {
    *memory = {Rule::get().memory(), Rule::get().memory(), 0};
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Handle, int* major, int* minor) {
    *minor = number("minor");
    return give(major, number("major"));
}

int nvmlDeviceGetArchitecture(Handle, unsigned* architecture) { return give(architecture, number("major")); }
int nvmlDeviceGetComputeMode(Handle, int* mode) { return give(mode, 0); }

// Types of clocks: 2 is that of the memory.
int nvmlDeviceGetMaxClockInfo(Handle handle, int type, unsigned* mhz) {
    return give(mhz, type == 2 ? number("memory_mhz") : 1000 * number("ghz", device_of(handle)));
}

int nvmlDeviceGetClockInfo(Handle handle, int type, unsigned* mhz) {
    const double low = number("ghz_low", device_of(handle));
    return type != 2 && low ? give(mhz, 1000 * low) : nvmlDeviceGetMaxClockInfo(handle, type, mhz);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Handle handle, unsigned long long* reasons) {
    return give(reasons, number("throttle", device_of(handle)));
}

int nvmlDeviceGetCurrentClocksEventReasons(Handle handle, unsigned long long* reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(handle, reasons);
}

int nvmlDeviceGetPowerUsage(Handle, unsigned* milliwatts) { return give(milliwatts, 350000); }
int nvmlDeviceGetEnforcedPowerLimit(Handle, unsigned* milliwatts) { return give(milliwatts, 700000); }
int nvmlDeviceGetTemperature(Handle handle, int, unsigned* celsius) { return give(celsius, 40 + device_of(handle)); }
int nvmlDeviceGetTotalEnergyConsumption(Handle, unsigned long long* mj) { return give(mj, uptime_s() * 350000); }
int nvmlDeviceGetMaxPcieLinkGeneration(Handle, unsigned* value) { return give(value, 5); }
int nvmlDeviceGetMaxPcieLinkWidth(Handle, unsigned* value) { return give(value, 16); }
int nvmlDeviceGetPcieReplayCounter(Handle, unsigned* value) { return give(value, 0); }
int nvmlDeviceGetMemoryBusWidth(Handle, unsigned* bits) { return give(bits, 5120); }
int nvmlDeviceGetTotalEccErrors(Handle, int, int, unsigned long long* count) { return give(count, 0); }

int nvmlDeviceGetEccMode(Handle, int* current, int* pending) {
    *pending = 1;
    return give(current, 1);
}

// Torch refuses to go on without these functions; none has an answer.
int nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, int*) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, void*) { return NOT_SUPPORTED; }
int nvmlDeviceGetComputeRunningProcesses(Handle, unsigned*, void*) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(Handle, void*) { return NOT_SUPPORTED; }

int nvmlDeviceGetNvLinkState(Handle, unsigned link, int* active) {
    return link < number("nvlinks") ? give(active, 1) : INVALID;
}

int nvmlDeviceGetNvLinkVersion(Handle, unsigned link, unsigned* version) {
    return link < number("nvlinks") ? give(version, number("nvlink_version")) : INVALID;
}

}  // extern "C"
