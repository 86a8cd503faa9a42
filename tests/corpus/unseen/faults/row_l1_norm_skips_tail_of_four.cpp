// The sum of absolute values of each row, in four accumulators.
#include <custom_autograd/kernel.h>

#include <cmath>
#include <vector>

using namespace custom_autograd;

Tensor row_l1_norm(const Tensor& x) {
  check_contiguous(x, "x");
  int64_t columns = x.size(-1);
  Tensor out = allocate(x, std::vector<int64_t>(x.sizes().begin(), x.sizes().end() - 1));
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    const T* in = read<T>(x);
    T* result = write<T>(out);
    for_rows(row_count(x), columns, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* values = in + row * columns;
        Statistic<T> sums[4] = {0, 0, 0, 0};
        for (int64_t i = 0; i + 4 <= columns; i += 4) {
          for (int64_t lane = 0; lane < 4; ++lane) sums[lane] += std::abs(widen(values[i + lane]));
        }
        result[row] = narrow<T>(sums[0] + sums[1] + sums[2] + sums[3]);
      }
    });
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("row_l1_norm(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("row_l1_norm", TORCH_BOX(&row_l1_norm)); }
