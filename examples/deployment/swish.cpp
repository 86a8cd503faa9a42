// swish(x, beta) = x / (1 + exp(-beta * x)) on the CPU: see export.py.
#include <custom_autograd/kernel.h>

using namespace custom_autograd;

Tensor swish(const Tensor& x, double beta) {
  check_contiguous(x, "x");
  Tensor out = allocate_like(x);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    const T* in = read<T>(x);
    T* result = write<T>(out);
    S slope = static_cast<S>(beta);
    for_rows(x.numel(), 1, [=](int64_t first, int64_t last) {
#pragma omp simd
      for (int64_t i = first; i < last; ++i) {
        S value = widen(in[i]);
        result[i] = narrow<T>(value / (1 + exponential(-slope * value)));
      }
    });
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("swish(Tensor x, float beta) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("swish", TORCH_BOX(&swish)); }
