// What a CUDA kernel needs beside its own arithmetic: the current stream, checks, vectors of 16 bytes, sums of a block.
//
// It stands on torch's stable ABI, as kernel.h does. The device of the arguments is the current one when an op calls
// its kernel; the stream is that of the tensor, so that kernels run in order with those of torch.
#pragma once

#ifndef USE_CUDA
#define USE_CUDA  // uncovers the current stream in torch's header
#endif
#include <custom_autograd/kernel.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cuda_runtime.h>

namespace custom_autograd {

constexpr int WARP = 32;

inline cudaStream_t current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

// Raises what a launch just before has gone wrong with: a grid or block that is too large, no code for the device.
inline void check_launch(const char* kernel) {
  cudaError_t status = cudaGetLastError();
  STD_TORCH_CHECK(status == cudaSuccess, kernel, " was not launched: ", cudaGetErrorString(status));
}

inline void check_cuda(const Tensor& tensor, const char* argument) {
  STD_TORCH_CHECK(tensor.is_cuda() && tensor.is_contiguous(), "'", argument, "' must be a contiguous CUDA tensor");
}

inline void check_cuda_like(const Tensor& tensor, const char* argument, const Tensor& like, ScalarType type) {
  check_cuda(tensor, argument);
  STD_TORCH_CHECK(
      tensor.get_device_index() == like.get_device_index(), "'", argument, "' must be on the device of the others");
  STD_TORCH_CHECK(
      tensor.scalar_type() == type,
      "'", argument, "' must be a tensor of dtype ", torch::headeronly::toString(type), ", found ",
      torch::headeronly::toString(tensor.scalar_type()));
}

// The number of blocks, where CUDA takes so many along its first dimension. Launch nothing where it is 0.
inline unsigned grid(int64_t blocks) {
  STD_TORCH_CHECK(blocks >= 0 && blocks <= 2147483647, "a grid of ", blocks, " blocks is more than CUDA launches");
  return static_cast<unsigned>(blocks);
}

// What one thread loads or stores at once, with one instruction: up to 16 bytes.
template <typename T, int count>
struct alignas(sizeof(T) * count) Vector {
  T values[count];
};

template <typename T>
constexpr int elements_per_vector = 16 / sizeof(T);

template <typename T>
inline bool is_aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// The sum over all threads of the block, in each of them. The block is a multiple of a warp, of at most 1024 threads.
template <typename S>
__device__ inline S block_sum(S value) {
  __shared__ S partial[WARP];
  for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  int warps = blockDim.x / WARP;
  if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = value;
  __syncthreads();
  value = threadIdx.x % WARP < warps ? partial[threadIdx.x % WARP] : S(0);
  for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  __syncthreads();  // the next sum writes to the same memory
  return value;
}

}  // namespace custom_autograd
