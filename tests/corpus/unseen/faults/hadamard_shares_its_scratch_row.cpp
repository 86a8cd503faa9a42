#include <custom_autograd/kernel.h>

#include <vector>

using namespace custom_autograd;

Tensor hadamard(const Tensor& x) {
  static std::vector<double> row(1 << 16);
  check_contiguous(x, "x");
  int64_t columns = x.size(-1);
  STD_TORCH_CHECK(columns > 0 && columns <= 1 << 16 && (columns & (columns - 1)) == 0, "a power of 2");
  Tensor out = allocate_like(x);
  const double* in = read<double>(x);
  double* result = write<double>(out);
  for (int64_t r = 0; r < row_count(x); ++r) {
    std::copy_n(in + r * columns, columns, row.begin());
    for (int64_t half = 1; half < columns; half *= 2) {
      for (int64_t i = 0; i < columns; i += 2 * half) {
        for (int64_t j = i; j < i + half; ++j) {
          double a = row[j], b = row[j + half];
          row[j] = a + b;
          row[j + half] = a - b;
        }
      }
    }
    std::copy_n(row.begin(), columns, result + r * columns);
  }
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("hadamard(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("hadamard", TORCH_BOX(&hadamard)); }
