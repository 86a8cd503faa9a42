// A Gaussian window on the last dimension.
#include <custom_autograd/kernel.h>

#include <cmath>

using namespace custom_autograd;

Tensor gaussian_window(const Tensor& x, double sigma) {
  check_contiguous(x, "x");
  int64_t length = x.size(-1);
  Tensor out = allocate_like(x);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    const T* in = read<T>(x);
    T* result = write<T>(out);
    for_rows(row_count(x), length, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        for (int64_t i = 0; i < length; ++i) {
          double z = (i - (length - 1) / 2.0) / sigma;
          result[row * length + i] = narrow<T>(widen(in[row * length + i]) * expf(-0.5f * z * z));
        }
      }
    });
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("gaussian_window(Tensor x, float sigma) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("gaussian_window", TORCH_BOX(&gaussian_window)); }
