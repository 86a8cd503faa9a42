// The sums of the columns of a matrix: every thread adds its rows.
#include <custom_autograd/kernel.h>

using namespace custom_autograd;

Tensor column_sums(const Tensor& x) {
  check_contiguous(x, "x");
  int64_t columns = x.size(1);
  Tensor out = allocate(x, {columns});
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    const T* in = read<T>(x);
    T* sums = write<T>(out);
    for (int64_t i = 0; i < columns; ++i) sums[i] = narrow<T>(Statistic<T>(0));
    for_rows(x.size(0), columns, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        for (int64_t i = 0; i < columns; ++i) sums[i] = narrow<T>(widen(sums[i]) + widen(in[row * columns + i]));
      }
    });
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("column_sums(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("column_sums", TORCH_BOX(&column_sums)); }
