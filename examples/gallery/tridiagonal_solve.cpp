// Tridiagonal systems by Thomas's algorithm, one vector lane per system: see tridiagonal_solve.py.
#include <custom_autograd/kernel.h>

#include <atomic>
#include <vector>

using namespace custom_autograd;

// Several vectors of systems at once: the division of one hides behind those of the others.
constexpr int64_t LANES = 32;

template <typename T>
struct Rows {
  const T* data;
  int64_t stride;
};

template <typename T>
static Rows<T> rows_of(const Tensor& tensor, const Tensor& rhs, const char* argument) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.dim() == 2 && tensor.scalar_type() == rhs.scalar_type() &&
          tensor.size(0) == rhs.size(0) && tensor.size(1) == rhs.size(1) && (tensor.size(1) == 1 || tensor.stride(1) == 1),
      "'", argument, "' must be a CPU tensor (systems, n) of the dtype of 'rhs', with each system in one piece");
  return {read<T>(tensor), tensor.stride(0)};
}

// Rows first .. first + LANES of a (systems, n) tensor, columns begin .. begin + steps, transposed; lanes without a
// system keep what they have.
template <typename T, typename S>
static void load_tile(const Rows<T>& rows, int64_t first, int64_t lanes, int64_t begin, int64_t steps, S (*tile)[LANES]) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const T* row = rows.data + (first + lane) * rows.stride + begin;
    for (int64_t step = 0; step < steps; ++step) tile[step][lane] = widen(row[step]);
  }
}

template <typename T>
struct Block {
  using S = Statistic<T>;
  Rows<T> lower, diagonal, upper, rhs;
  T* solution;
  int64_t n;
  std::vector<S> ratio, value;  // (n, LANES): upper / pivot, and what becomes the solution
  S a[LANES][LANES] = {}, b[LANES][LANES], c[LANES][LANES] = {}, d[LANES][LANES] = {};

  Block(Rows<T> lower, Rows<T> diagonal, Rows<T> upper, Rows<T> rhs, T* solution, int64_t n)
      : lower(lower), diagonal(diagonal), upper(upper), rhs(rhs), solution(solution), n(n),
        ratio(n * LANES), value(n * LANES) {}

  // Returns the first system and row with a zero pivot as system * n + row, or none.
  int64_t solve(int64_t first, int64_t lanes, int64_t none) {
    std::fill_n(&b[0][0], LANES * LANES, S(1));  // lanes without a system solve x = 0
    int32_t zero_pivot[LANES];
    std::fill_n(zero_pivot, LANES, -1);
    for (int64_t begin = 0; begin < n; begin += LANES) {
      int64_t steps = std::min(LANES, n - begin);
      load_tile(lower, first, lanes, begin, steps, a);
      load_tile(diagonal, first, lanes, begin, steps, b);
      load_tile(upper, first, lanes, begin, steps, c);
      load_tile(rhs, first, lanes, begin, steps, d);
      if (begin == 0) std::fill_n(a[0], LANES, S(0));
      if (begin + steps == n) std::fill_n(c[steps - 1], LANES, S(0));
      for (int64_t step = 0; step < steps; ++step) eliminate(begin + step, a[step], b[step], c[step], d[step], zero_pivot);
    }
    for (int64_t lane = 0; lane < lanes; ++lane) {
      if (zero_pivot[lane] >= 0) return (first + lane) * n + zero_pivot[lane];
    }
    substitute();
    store(first, lanes);
    return none;
  }

  void eliminate(int64_t row, const S* a, const S* b, const S* c, const S* d, int32_t* zero_pivot) {
    static const S zeros[LANES] = {};
    const S* last_ratio = row ? &ratio[(row - 1) * LANES] : zeros;
    const S* last_value = row ? &value[(row - 1) * LANES] : zeros;
    S *next_ratio = &ratio[row * LANES], *next_value = &value[row * LANES];
    int32_t number = static_cast<int32_t>(row);
#pragma omp simd
    for (int64_t lane = 0; lane < LANES; ++lane) {
      S pivot = b[lane] - a[lane] * last_ratio[lane];
      zero_pivot[lane] = pivot == S(0) && zero_pivot[lane] < 0 ? number : zero_pivot[lane];
      next_ratio[lane] = c[lane] / pivot;  // the inverse of a denormal pivot would be infinite
      next_value[lane] = (d[lane] - a[lane] * last_value[lane]) / pivot;
    }
  }

  void substitute() {
    for (int64_t row = n - 2; row >= 0; --row) {
      S *x = &value[row * LANES], *c = &ratio[row * LANES], *after = x + LANES;
#pragma omp simd
      for (int64_t lane = 0; lane < LANES; ++lane) x[lane] -= c[lane] * after[lane];
    }
  }

  void store(int64_t first, int64_t lanes) {
    for (int64_t begin = 0; begin < n; begin += LANES) {
      int64_t steps = std::min(LANES, n - begin);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        T* out = solution + (first + lane) * n + begin;
        const S* x = &value[begin * LANES + lane];
        for (int64_t step = 0; step < steps; ++step) out[step] = narrow<T>(x[step * LANES]);
      }
    }
  }
};

// All (systems, n). Returns the solutions, contiguous.
Tensor thomas(const Tensor& lower, const Tensor& diagonal, const Tensor& upper, const Tensor& rhs) {
  STD_TORCH_CHECK(rhs.dim() == 2 && rhs.size(1) < (int64_t{1} << 31), "'rhs' must be (systems, n), n below 2^31");
  int64_t systems = rhs.size(0), n = rhs.size(1);
  Tensor solution = allocate(rhs, {systems, n});
  if (systems * n == 0) return solution;
  int64_t none = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> zero_pivot{none};
  for_element_type(rhs, "rhs", [&](auto element) {
    using T = decltype(element);
    auto a = rows_of<T>(lower, rhs, "lower"), b = rows_of<T>(diagonal, rhs, "diagonal");
    auto c = rows_of<T>(upper, rhs, "upper"), d = rows_of<T>(rhs, rhs, "rhs");
    T* out = write<T>(solution);
    for_rows((systems + LANES - 1) / LANES, n * LANES, [&, a, b, c, d, out](int64_t first, int64_t last) {
      Block<T> block(a, b, c, d, out, n);
      for (int64_t part = first; part < last; ++part) {
        int64_t begin = part * LANES;
        int64_t found = block.solve(begin, std::min(LANES, systems - begin), none);
        for (int64_t least = zero_pivot; found < least && !zero_pivot.compare_exchange_weak(least, found);) {
        }
      }
    });
  });
  int64_t found = zero_pivot;
  STD_TORCH_CHECK(found == none, "gallery::tridiagonal_solve: the pivot of row ", found % n, " in system ", found / n,
      " is zero, and rows are not exchanged: solve the dense matrix with torch.linalg.solve");
  return solution;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("thomas(Tensor lower, Tensor diagonal, Tensor upper, Tensor rhs) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("thomas", TORCH_BOX(&thomas)); }
