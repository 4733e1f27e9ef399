#include "timeline.hpp"

#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "rule.hpp"

// The stub of libcuda asks for it: the driver is initialised with the runtime's first call.
extern "C" {
int virtual_gpu_touched = 0;
}

namespace virtual_gpu {

Nanoseconds now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

void wait_until(Nanoseconds instant) {
    constexpr Nanoseconds SLEEPABLE = 80'000, WAKING = 60'000;  // a sleep ends about this much too late
    for (Nanoseconds left; (left = instant - now()) > 0;) {
        if (left > SLEEPABLE) {
            const Nanoseconds nap = left - WAKING;
            const timespec time{nap / 1'000'000'000LL, nap % 1'000'000'000LL};
            nanosleep(&time, nullptr);
        } else {
            sched_yield();
        }
    }
}

void Pause::operator()() {
    if (now() - since_ > 300'000) usleep(100);
    else sched_yield();
}

Stream::Stream(int of_device) : device(of_device) {
    std::thread([this] { work(); }).detach();
}

void Stream::enqueue(Operation operation) {
    if (capturing) {
        capturing->operations.push_back(std::move(operation));
        return;
    }
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(operation), now()});
    filled_.notify_one();
}

void Stream::work() {
    const Nanoseconds launch = 1000 * number("launch_us", device), late = 1000 * number("late_us", device);
    std::unique_lock lock(mutex_);
    for (;;) {
        filled_.wait(lock, [this] { return !queue_.empty(); });
        const Enqueued next = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
        lock.unlock();
        const Nanoseconds ready = next.at + launch;
        const Nanoseconds begin = end_ >= ready ? end_.load() : ready + late;
        end_ = std::max(begin, next.operation(begin));
        lock.lock();
        busy_ = false;
        if (queue_.empty()) idle_.notify_all();
    }
}

void Stream::wait_for_bytes() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

void Stream::synchronize() {
    wait_for_bytes();
    wait_until(end_);
}

bool Stream::is_done() {
    const std::lock_guard lock(mutex_);
    return queue_.empty() && !busy_ && now() >= end_;
}

namespace {
std::mutex streams_mutex;
std::vector<Stream*> all_streams;
std::map<int, Stream*> default_streams;
thread_local int device_of_thread = 0;
bool forked_after_use = false;
}  // namespace

Stream* new_stream() {
    auto* stream = new Stream(device_of_thread);
    const std::lock_guard lock(streams_mutex);
    all_streams.push_back(stream);
    return stream;
}

Stream* stream_of(void* handle) {
    if (reinterpret_cast<uintptr_t>(handle) > 2) return static_cast<Stream*>(handle);  // 1, 2: legacy, per thread
    {
        const std::lock_guard lock(streams_mutex);
        if (auto found = default_streams.find(device_of_thread); found != default_streams.end()) return found->second;
    }
    Stream* stream = new_stream();
    const std::lock_guard lock(streams_mutex);
    return default_streams.try_emplace(device_of_thread, stream).first->second;
}

std::vector<Stream*> streams_of(int device) {
    const std::lock_guard lock(streams_mutex);
    std::vector<Stream*> found;
    std::copy_if(all_streams.begin(), all_streams.end(), std::back_inserter(found),
                 [device](Stream* stream) { return stream->device == device; });
    return found;
}

int current_device() { return device_of_thread; }
void set_current_device(int device) { device_of_thread = device; }

bool usable() {
    static const int once = pthread_atfork(nullptr, nullptr, [] { forked_after_use = virtual_gpu_touched; });
    (void)once;
    virtual_gpu_touched = 1;
    return !forked_after_use;
}

Nanoseconds copy_time(size_t bytes, int device) {
    return 1000 * number("copy_us", device) + bytes / number("copy_gbps", device);
}

}  // namespace virtual_gpu
