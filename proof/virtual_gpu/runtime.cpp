// The CUDA runtime (libcudart) as far as torch uses it: devices, memory, streams, events, graphs, kernels.
//
// Device memory is this process's memory. Left out: memory pools, IPC, textures, peer mappings (all memory is reachable),
// managed memory. A function that is not here ends in its name (missing.cpp, which the build makes).
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "rule.hpp"
#include "timeline.hpp"

using namespace virtual_gpu;

namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t error) { return last_error = error; }
cudaError_t begun() { return usable() ? cudaSuccess : failed(cudaErrorInitializationError); }
bool exists(int device) { return device >= 0 && device < Rule::get().gpus(); }

// Device or pinned memory, by its first address.
struct Block {
    size_t bytes;
    int device;
};
std::mutex memory_mutex;
std::map<uintptr_t, Block> device_blocks, host_blocks;
std::map<int, size_t> used;

const std::pair<const uintptr_t, Block>* block_with(const std::map<uintptr_t, Block>& blocks, const void* address) {
    auto above = blocks.upper_bound(reinterpret_cast<uintptr_t>(address));
    if (above == blocks.begin()) return nullptr;
    const auto& block = *std::prev(above);
    return reinterpret_cast<uintptr_t>(address) < block.first + block.second.bytes ? &block : nullptr;
}

Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }
Graph* graph_of(void* graph) { return static_cast<Graph*>(graph); }

// What may not happen while a stream captures: it would wait for what has not run. All torch relies on is the error.
cudaError_t refused_while_capturing() {
    for (Stream* stream : streams_of(current_device()))
        if (stream->capturing) return failed(cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}

}  // namespace

extern "C" {

// ── devices ──────────────────────────────────────────────────────────────────────────────────────
cudaError_t cudaGetDeviceCount(int* count) {
    *count = Rule::get().gpus();
    return begun();
}

cudaError_t cudaGetDevice(int* device) {
    *device = current_device();
    return begun();
}

cudaError_t cudaSetDevice(int device) {
    if (auto error = begun()) return error;
    if (!exists(device)) return failed(cudaErrorInvalidDevice);
    set_current_device(device);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (!exists(device)) return failed(cudaErrorInvalidDevice);
    cudaDeviceProp p{};
    snprintf(p.name, sizeof p.name, "%s", Rule::get().gpu_name().c_str());
    p.major = number("major");
    p.minor = number("minor");
    p.totalGlobalMem = Rule::get().memory();
    p.multiProcessorCount = 132;
    p.warpSize = 32;
    p.maxThreadsPerBlock = p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxThreadsPerMultiProcessor = 2048;
    p.maxGridSize[0] = 2147483647;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.sharedMemPerBlock = 49152;
    p.sharedMemPerBlockOptin = 232448;
    p.sharedMemPerMultiprocessor = 233472;
    p.regsPerBlock = p.regsPerMultiprocessor = 65536;
    p.l2CacheSize = 50 << 20;
    p.unifiedAddressing = p.concurrentKernels = p.canMapHostMemory = 1;
    p.asyncEngineCount = 2;
    p.pciBusID = device + 1;
    for (int i = 0; i < 4; i++) p.uuid.bytes[i] = static_cast<char>(host() >> (24 - 8 * i));
    p.uuid.bytes[15] = static_cast<char>(device + 1);
    *properties = p;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp properties;
    if (auto error = cudaGetDeviceProperties(&properties, device)) return error;
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
        case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
        case cudaDevAttrWarpSize: *value = properties.warpSize; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
        case cudaDevAttrClockRate: *value = 1e6 * number("ghz", device); break;
        case cudaDevAttrUnifiedAddressing: *value = 1; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
    snprintf(text, length, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

cudaError_t cudaDeviceSynchronize() {
    if (auto error = begun()) return error;
    if (auto error = refused_while_capturing()) return error;
    for (Stream* stream : streams_of(current_device())) stream->synchronize();
    return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInitializationError: return "cudaErrorInitializationError";
        case cudaErrorNotSupported: return "cudaErrorNotSupported";
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        default: return "another error of the virtual GPU";
    }
}

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInitializationError: return "initialization error";
        case cudaErrorNotSupported: return "operation not supported by the virtual GPU";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        default: return "another error of the virtual GPU";
    }
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    static thread_local cudaStreamCaptureMode of_thread = cudaStreamCaptureModeGlobal;
    std::swap(*mode, of_thread);
    return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ── memory ───────────────────────────────────────────────────────────────────────────────────────
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    if (auto error = begun()) return error;
    const std::lock_guard lock(memory_mutex);
    *pointer = nullptr;
    if (used[current_device()] + bytes > Rule::get().memory()) return failed(cudaErrorMemoryAllocation);
    void* block = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
    device_blocks[reinterpret_cast<uintptr_t>(block)] = {bytes, current_device()};
    used[current_device()] += bytes;
    *pointer = block;
    return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
    if (!pointer) return begun();
    for (Stream* stream : streams_of(current_device())) stream->synchronize();
    const std::lock_guard lock(memory_mutex);
    auto found = device_blocks.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == device_blocks.end()) return failed(cudaErrorInvalidValue);
    munmap(pointer, std::max<size_t>(found->second.bytes, 1));
    used[found->second.device] -= found->second.bytes;
    device_blocks.erase(found);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    *pointer = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    const std::lock_guard lock(memory_mutex);
    host_blocks[reinterpret_cast<uintptr_t>(*pointer)] = {bytes, -1};
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
    const std::lock_guard lock(memory_mutex);
    host_blocks.erase(reinterpret_cast<uintptr_t>(pointer));
    free(pointer);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    if (auto error = begun()) return error;
    const std::lock_guard lock(memory_mutex);
    *total = Rule::get().memory();
    *free_bytes = *total - used[current_device()];
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    *attributes = {};
    auto* address = const_cast<void*>(pointer);
    const std::lock_guard lock(memory_mutex);
    if (auto* block = block_with(device_blocks, pointer)) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = block->second.device;
        attributes->devicePointer = address;
        return cudaSuccess;
    }
    attributes->hostPointer = address;
    if (block_with(host_blocks, pointer)) {
        attributes->type = cudaMemoryTypeHost;
        attributes->devicePointer = address;
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
    Stream* stream = stream_of(handle);
    stream->enqueue([=, device = stream->device](Nanoseconds begin) {
        memcpy(to, from, bytes);
        return begin + copy_time(bytes, device);
    });
    // From and to pageable memory the runtime waits, and pinned memory of the host is not told apart here.
    if (kind != cudaMemcpyDeviceToDevice && !stream->capturing) stream->synchronize();
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    stream_of(nullptr)->synchronize();
    return error;
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t handle) {
    Stream* stream = stream_of(handle);
    stream->enqueue([=, device = stream->device](Nanoseconds begin) {
        memset(to, value, bytes);
        return begin + copy_time(bytes, device);
    });
    return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    const cudaError_t error = cudaMemsetAsync(to, value, bytes, nullptr);
    stream_of(nullptr)->synchronize();
    return error;
}

// Variables of kernels, which are never run.
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }

cudaError_t cudaGetSymbolAddress(void** pointer, const void*) {
    static char nowhere[4096];
    *pointer = nowhere;
    return cudaSuccess;
}

// ── streams ──────────────────────────────────────────────────────────────────────────────────────
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
    if (auto error = begun()) return error;
    *stream = reinterpret_cast<cudaStream_t>(new_stream());
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    stream_of(stream)->synchronize();
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
    *priority = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (stream_of(stream)->capturing) return failed(cudaErrorStreamCaptureUnsupported);
    stream_of(stream)->synchronize();
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    if (stream_of(stream)->capturing) return failed(cudaErrorStreamCaptureUnsupported);
    return stream_of(stream)->is_done() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    MomentPtr moment = event_of(event)->moment;
    Stream* stream = stream_of(handle);
    if (!moment) return cudaSuccess;
    if (Graph* graph = moment->graph) {  // it was recorded while this graph was captured: the stream joins the capture
        if (!stream->capturing) {
            stream->capturing = graph;
            graph->streams.push_back(stream);
        }
        return cudaSuccess;
    }
    stream->enqueue([moment](Nanoseconds begin) {
        for (Pause pause; !moment->known;) pause();
        return std::max(begin, moment->at);
    });
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    stream_of(stream)->enqueue([=](Nanoseconds begin) {
        wait_until(begin);
        function(data);
        return std::max(begin, now());
    });
    return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
    stream_of(stream)->enqueue([=](Nanoseconds begin) {
        wait_until(begin);
        function(stream, cudaSuccess, data);
        return std::max(begin, now());
    });
    return cudaSuccess;
}

// ── events ───────────────────────────────────────────────────────────────────────────────────────
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    if (auto error = begun()) return error;
    auto* created = new Event;
    created->timing = !(flags & cudaEventDisableTiming);
    *event = reinterpret_cast<cudaEvent_t>(created);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event_of(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned) {
    Stream* stream = stream_of(handle);
    auto moment = std::make_shared<Moment>();
    moment->graph = stream->capturing;
    event_of(event)->moment = moment;
    stream->enqueue([moment](Nanoseconds begin) {
        moment->at = begin;
        moment->known = true;
        return begin;
    });
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }

// By the virtual axis, so it waits a little for the bytes; else an event seems to be open that by rule has passed. For
// events that time something, longer: with many ranks on few cores, bytes come late, and who asks wants the instant.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    const MomentPtr moment = event_of(event)->moment;
    if (!moment) return cudaSuccess;
    if (moment->graph) return failed(cudaErrorStreamCaptureUnsupported);
    const Nanoseconds asked = now(), most = (event_of(event)->timing ? 100e6 : 1e6) * number("query_ms");
    for (Pause pause; !moment->known && now() - asked < most;) pause();
    return moment->known && asked >= moment->at ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const MomentPtr moment = event_of(event)->moment;
    if (!moment) return cudaSuccess;
    for (Pause pause; !moment->known;) pause();
    wait_until(moment->at);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
    for (cudaEvent_t event : {first, second})
        if (!event_of(event)->timing || !event_of(event)->moment) return failed(cudaErrorInvalidResourceHandle);
    for (cudaEvent_t event : {first, second})
        if (cudaEventQuery(event) != cudaSuccess) return cudaErrorNotReady;
    *milliseconds = (event_of(second)->moment->at - event_of(first)->moment->at) / 1e6;
    return cudaSuccess;
}

// ── graphs ───────────────────────────────────────────────────────────────────────────────────────
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
    static std::atomic<unsigned long long> ids{1};
    Stream* stream = stream_of(handle);
    if (stream->capturing) return failed(cudaErrorIllegalState);
    stream->capturing = new Graph{{}, {stream}, ids++};
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    Graph* captured = stream_of(stream)->capturing;
    if (!captured) return failed(cudaErrorIllegalState);
    for (Stream* joined : captured->streams) joined->capturing = nullptr;
    *graph = reinterpret_cast<cudaGraph_t>(captured);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    *status = stream_of(stream)->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
    Graph* captured = stream_of(stream)->capturing;
    if (id) *id = captured ? captured->id : 0;
    if (graph) *graph = reinterpret_cast<cudaGraph_t>(captured);
    if (nodes) *nodes = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                unsigned) {
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    *executable = reinterpret_cast<cudaGraphExec_t>(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    stream_of(stream)->enqueue([graph = graph_of(executable)](Nanoseconds begin) {
        for (const Operation& operation : graph->operations) begin = std::max(begin, operation(begin));
        return begin;
    });
    return cudaSuccess;
}

// A graph and what is made of it are one here, and live as long as the process: a test's are small.
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
    *count = graph_of(graph)->operations.size();
    return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { return cudaSuccess; }

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned, unsigned) {
    *object = reinterpret_cast<cudaUserObject_t>(1);
    return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }

cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void* value) {
    *static_cast<unsigned long long*>(value) = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) { return cudaSuccess; }

// ── kernels ──────────────────────────────────────────────────────────────────────────────────────
// Machine code for GPUs is never run: ATen's operations are computed by aten.py. `spin_kernel` (torch.cuda._sleep) is
// time alone; any other kernel that is launched all the same is refused by its name.
static std::unordered_map<const void*, const char*>& kernel_names() {
    static auto* names = new std::unordered_map<const void*, const char*>;
    return *names;
}

void** __cudaRegisterFatBinary(void*) {
    static void* handle[4];
    return handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
    kernel_names()[function] = name;
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

struct LaunchConfiguration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
static thread_local std::vector<LaunchConfiguration> configurations;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    configurations.push_back({grid, block, shared, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    const LaunchConfiguration last = configurations.back();
    configurations.pop_back();
    *grid = last.grid;
    *block = last.block;
    *shared = last.shared;
    *static_cast<cudaStream_t*>(stream) = last.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t handle) {
    auto found = kernel_names().find(function);
    const std::string name = found == kernel_names().end() ? "of no name" : found->second;
    if (name.find("spin_kernel") == std::string::npos) {
        fprintf(stderr, "virtual GPU: the kernel %s cannot be run\n", name.c_str());
        return failed(cudaErrorNotSupported);
    }
    const long long cycles = *static_cast<long long*>(arguments[0]);
    Stream* stream = stream_of(handle);
    stream->enqueue([cycles, device = stream->device](Nanoseconds begin) {
        static const Nanoseconds born = now();
        const double high = number("ghz", device), low = number("ghz_low", device);
        const double risen = std::min(1.0, (now() - born) / 1e9 / number("rise_s", device));
        return begin + static_cast<Nanoseconds>(cycles / (low ? low + (high - low) * risen : high));
    });
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* launch, const void* function, void** arguments) {
    return cudaLaunchKernel(function, launch->gridDim, launch->blockDim, arguments, 0, launch->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->binaryVersion = attributes->ptxVersion = 90;
    attributes->numRegs = 32;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
    *blocks = 2;
    return cudaSuccess;
}

// Functions of the driver that torch asks the runtime for, by name.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    constexpr int NOT_SUPPORTED = 801, MULTICAST_SUPPORTED = 132;
    static auto attribute = +[](int* value, int asked, int) {
        *value = asked == MULTICAST_SUPPORTED ? static_cast<int>(number("multicast")) : 1;
        return 0;
    };
    static auto context_state = +[](int, unsigned* flags, int* active) {
        *flags = 0;
        *active = 1;
        return 0;
    };
    static auto unsupported = +[] { return NOT_SUPPORTED; };
    const std::string wanted = name;
    if (wanted == "cuDeviceGetAttribute") *function = reinterpret_cast<void*>(attribute);
    else if (wanted == "cuDevicePrimaryCtxGetState") *function = reinterpret_cast<void*>(context_state);
    else *function = reinterpret_cast<void*>(unsupported);
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) { return failed(cudaErrorNotSupported); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return failed(cudaErrorNotSupported); }

// ── what aten.py calls ───────────────────────────────────────────────────────────────────────────
// An operation of Python on the thread of a stream: its bytes are computed by `compute`, and it takes so long by rule.
void virtual_gpu_enqueue(void* stream, void (*compute)(long long), long long token, long long nanoseconds) {
    stream_of(reinterpret_cast<cudaStream_t>(stream))->enqueue([=](Nanoseconds begin) {
        compute(token);
        return begin + nanoseconds;
    });
}

void virtual_gpu_wait_for_bytes(void* stream) { stream_of(stream)->wait_for_bytes(); }
int virtual_gpu_is_capturing(void* stream) { return stream_of(stream)->capturing != nullptr; }
double virtual_gpu_rule(const char* name, int device, const char* operation) { return number(name, device, operation); }

}  // extern "C"
