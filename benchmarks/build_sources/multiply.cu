// x * y of float32 on a GPU, and its backward, through the stable ABI: see benchmarks/peers.py.
#include <custom_autograd/cuda.h>

#include <tuple>

using namespace custom_autograd;

__global__ void multiply_elements(const float* x, const float* y, float* out, int64_t count) {
  int64_t place = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place < count) out[place] = x[place] * y[place];
}

Tensor multiply(const Tensor& x, const Tensor& y) {
  check_cuda(x, "x");
  check_cuda_like(y, "y", x, ScalarType::Float);
  STD_TORCH_CHECK(x.numel() == y.numel(), "'y' must have as many elements as 'x'");
  Tensor out = torch::stable::empty_like(x);
  int64_t count = x.numel();
  if (count == 0) return out;  // a grid of no blocks is an error
  multiply_elements<<<grid((count + 127) / 128), 128, 0, current_stream(x)>>>(
      read<float>(x), read<float>(y), write<float>(out), count);
  check_launch("multiply");
  return out;
}

std::tuple<Tensor, Tensor> multiply_backward(const Tensor& grad, const Tensor& x, const Tensor& y) {
  return {multiply(grad, y), multiply(grad, x)};
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("multiply(Tensor x, Tensor y) -> Tensor");
  m.def("multiply_backward(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CUDA, m) {
  m.impl("multiply", TORCH_BOX(&multiply));
  m.impl("multiply_backward", TORCH_BOX(&multiply_backward));
}
