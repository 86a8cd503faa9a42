// The logarithm of the sum of exponentials of each row.
#include <custom_autograd/kernel.h>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace custom_autograd;

Tensor log_sum_exp(const Tensor& x) {
  check_contiguous(x, "x");
  int64_t columns = x.size(-1);
  Tensor out = allocate(x, std::vector<int64_t>(x.sizes().begin(), x.sizes().end() - 1));
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    const T* in = read<T>(x);
    T* result = write<T>(out);
    for_rows(row_count(x), columns, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* values = in + row * columns;
        S highest = 0, sum = 0;
        for (int64_t i = 0; i < columns; ++i) highest = std::max(highest, widen(values[i]));
        for (int64_t i = 0; i < columns; ++i) sum += std::exp(widen(values[i]) - highest);
        result[row] = narrow<T>(highest + std::log(sum));
      }
    });
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("log_sum_exp(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("log_sum_exp", TORCH_BOX(&log_sum_exp)); }
