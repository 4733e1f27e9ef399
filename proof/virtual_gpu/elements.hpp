// Arithmetic of a collective on the elements of NCCL's dtypes, with the conversions of CUDA's own headers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace virtual_gpu {

inline size_t width_of(ncclDataType_t dtype) {
    switch (dtype) {
        case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
        case ncclFloat16: case ncclBfloat16: return 2;
        case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
        default: return 8;
    }
}

// Calls `use` with a pointer of the dtype's type.
template <class Use>
void with_type(void* elements, ncclDataType_t dtype, Use use) {
    switch (dtype) {
        case ncclInt8: return use(static_cast<int8_t*>(elements));
        case ncclUint8: return use(static_cast<uint8_t*>(elements));
        case ncclInt32: return use(static_cast<int32_t*>(elements));
        case ncclUint32: return use(static_cast<uint32_t*>(elements));
        case ncclInt64: return use(static_cast<int64_t*>(elements));
        case ncclUint64: return use(static_cast<uint64_t*>(elements));
        case ncclFloat16: return use(static_cast<__half*>(elements));
        case ncclBfloat16: return use(static_cast<__nv_bfloat16*>(elements));
        case ncclFloat8e4m3: return use(static_cast<__nv_fp8_e4m3*>(elements));
        case ncclFloat8e5m2: return use(static_cast<__nv_fp8_e5m2*>(elements));
        case ncclFloat64: return use(static_cast<double*>(elements));
        default: return use(static_cast<float*>(elements));
    }
}

// What is computed with: narrow floating-point numbers are widened for each operation, as NCCL's kernels do.
template <class T>
using Wide = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

// into[i] = into[i] op with[i]; averages are sums here, and divided at the end.
inline void combine(void* into, const void* with, size_t count, ncclDataType_t dtype, ncclRedOp_t op) {
    with_type(into, dtype, [=](auto* a) {
        using T = std::remove_pointer_t<decltype(a)>;
        const T* b = static_cast<const T*>(with);
        auto each = [=](auto of) {
            for (size_t i = 0; i < count; i++)
                a[i] = static_cast<T>(of(static_cast<Wide<T>>(a[i]), static_cast<Wide<T>>(b[i])));
        };
        switch (op) {
            case ncclProd: return each([](auto x, auto y) { return x * y; });
            case ncclMax: return each([](auto x, auto y) { return std::max(x, y); });
            case ncclMin: return each([](auto x, auto y) { return std::min(x, y); });
            default: return each([](auto x, auto y) { return x + y; });
        }
    });
}

inline void divide(void* elements, size_t count, ncclDataType_t dtype, int by) {
    with_type(elements, dtype, [=](auto* a) {
        using T = std::remove_pointer_t<decltype(a)>;
        for (size_t i = 0; i < count; i++) a[i] = static_cast<T>(static_cast<Wide<T>>(a[i]) / static_cast<Wide<T>>(by));
    });
}

inline void scale(void* elements, size_t count, ncclDataType_t dtype, double by) {
    with_type(elements, dtype, [=](auto* a) {
        using T = std::remove_pointer_t<decltype(a)>;
        for (size_t i = 0; i < count; i++) a[i] = static_cast<T>(static_cast<Wide<T>>(a[i]) * static_cast<Wide<T>>(by));
    });
}

inline double scalar(const void* value, ncclDataType_t dtype) {
    double result = 0;
    with_type(const_cast<void*>(value), dtype, [&](auto* a) {
        result = static_cast<double>(static_cast<Wide<std::remove_pointer_t<decltype(a)>>>(*a));
    });
    return result;
}

}  // namespace virtual_gpu
