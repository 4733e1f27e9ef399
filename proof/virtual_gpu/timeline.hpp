// Virtual time: streams whose operations begin and end by rule, events as instants on that axis, and graphs.
//
// An operation has bytes and a time. Its bytes are computed by the thread of its stream, in order, whenever this machine
// comes to it. Its time follows from the rule alone: it begins at the latest of the end of the operation before it, the
// instant at which it was enqueued plus a launch latency, and what it waits for. The host sees an operation as done when
// its end has passed on the real clock and its bytes are there.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace virtual_gpu {

using Nanoseconds = long long;  // since an arbitrary zero that all processes of this host share

Nanoseconds now();
void wait_until(Nanoseconds instant);

// A wait for another thread or process: polls for a while, then sleeps, so that a hang does not take a core.
class Pause {
  public:
    void operator()();

  private:
    Nanoseconds since_ = now();
};

// An instant that becomes known when the stream comes to it.
struct Moment {
    std::atomic<bool> known{false};
    Nanoseconds at = 0;
    struct Graph* graph = nullptr;  // of an event that was recorded while this graph was captured
};
using MomentPtr = std::shared_ptr<Moment>;

// Computes the bytes of an operation that begins then, and returns when it ends.
using Operation = std::function<Nanoseconds(Nanoseconds begin)>;

class Stream {
  public:
    explicit Stream(int device);
    const int device;
    struct Graph* capturing = nullptr;

    void enqueue(Operation operation);
    void wait_for_bytes();  // not for their time
    void synchronize();     // for both
    bool is_done();

  private:
    struct Enqueued {
        Operation operation;
        Nanoseconds at;
    };
    void work();
    std::mutex mutex_;
    std::condition_variable filled_, idle_;
    std::deque<Enqueued> queue_;
    bool busy_ = false;
    std::atomic<Nanoseconds> end_{0};
};

// What was captured, one operation after the other: torch captures one stream and those that fork from it and join it.
struct Graph {
    std::vector<Operation> operations;
    std::vector<Stream*> streams;
    unsigned long long id;
};

struct Event {
    MomentPtr moment;  // of the last record; none before
    bool timing = true;
};

// The stream of a handle of CUDA on the current device; each device has one for the handle 0.
Stream* stream_of(void* handle);
Stream* new_stream();
std::vector<Stream*> streams_of(int device);

int current_device();
void set_current_device(int device);

// Whether CUDA may be used: not in the child of a process that has used it.
bool usable();

Nanoseconds copy_time(size_t bytes, int device);

}  // namespace virtual_gpu
