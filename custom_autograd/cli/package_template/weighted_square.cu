// weighted_square on a GPU, one thread per element: see weighted_square.py.
#include <custom_autograd/cuda.h>

using namespace custom_autograd;

constexpr int THREADS = 256;

template <typename T>
__global__ void weighted_square_element(const T* x, const T* weight, T* out, int64_t count, int64_t features) {
  int64_t place = blockIdx.x * int64_t(THREADS) + threadIdx.x;
  if (place >= count) return;
  using S = Statistic<T>;
  S value = static_cast<S>(x[place]);
  out[place] = static_cast<T>(static_cast<S>(weight[place % features]) * value * value);
}

// x: (..., features); weight: (features,), of the same dtype. Returns weight * x * x.
Tensor weighted_square(const Tensor& x, const Tensor& weight) {
  check_cuda(x, "x");
  bool fits = x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1);
  STD_TORCH_CHECK(fits, "'weight' must have one element per feature");
  check_cuda_like(weight, "weight", x, x.scalar_type());
  int64_t count = x.numel(), features = x.size(-1);
  Tensor out = allocate_like(x);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    unsigned blocks = grid((count + THREADS - 1) / THREADS);
    if (blocks == 0) return;
    weighted_square_element<T><<<blocks, THREADS, 0, current_stream(x)>>>(
        read<T>(x), read<T>(weight), write<T>(out), count, features);
    check_launch("weighted_square");
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("weighted_square(Tensor x, Tensor weight) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CUDA, m) {
  m.impl("weighted_square", TORCH_BOX(&weighted_square));
}
