// The CUDA driver (libcuda.so.1), which torch loads by name: contexts that are there, and nothing else.
#include <dlfcn.h>

#include "rule.hpp"

namespace {
constexpr int SUCCESS = 0, NOT_INITIALIZED = 3, NOT_SUPPORTED = 801;
void* const CONTEXT = reinterpret_cast<void*>(1);

int unsupported(const char* name) {
    fprintf(stderr, "virtual GPU: the driver's %s is not stood in for\n", name);
    return NOT_SUPPORTED;
}
}  // namespace

extern "C" {

int cuInit(unsigned) { return SUCCESS; }

// As the driver does: an error until the runtime has been used.
int cuDeviceGetCount(int* count) {
    const int* touched = static_cast<int*>(dlsym(RTLD_DEFAULT, "virtual_gpu_touched"));
    *count = virtual_gpu::Rule::get().gpus();
    return touched && *touched ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int* device, int number) {
    *device = number;
    return SUCCESS;
}

int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
    *flags = 0;
    *active = 1;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void** context, int) {
    *context = CONTEXT;
    return SUCCESS;
}

int cuCtxGetCurrent(void** context) {
    *context = CONTEXT;
    return SUCCESS;
}

int cuCtxSetCurrent(void*) { return SUCCESS; }

// 132: whether memory can be multicast. Torch asks before it lets NCCL allocate.
int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 132 ? static_cast<int>(virtual_gpu::Rule::get().number("multicast")) : 0;
    return SUCCESS;
}

int cuGetErrorString(int, const char** text) {
    *text = "an error of the virtual driver";
    return SUCCESS;
}

#define UNSUPPORTED(name) \
    int name() { return unsupported(#name); }
UNSUPPORTED(cuFuncGetAttribute)
UNSUPPORTED(cuFuncSetAttribute)
UNSUPPORTED(cuFuncSetCacheConfig)
UNSUPPORTED(cuLaunchCooperativeKernel)
UNSUPPORTED(cuLaunchKernel)
UNSUPPORTED(cuLinkAddData_v2)
UNSUPPORTED(cuLinkComplete)
UNSUPPORTED(cuLinkCreate_v2)
UNSUPPORTED(cuModuleGetFunction)
UNSUPPORTED(cuModuleLoad)
UNSUPPORTED(cuModuleLoadData)
UNSUPPORTED(cuModuleLoadDataEx)
UNSUPPORTED(cuModuleUnload)
UNSUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
UNSUPPORTED(cuPointerGetAttribute)
UNSUPPORTED(cuTensorMapEncodeTiled)

}  // extern "C"
