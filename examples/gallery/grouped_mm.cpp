// Products of groups of rows with matrices of their own, and the gradient of the matrices: see grouped_mm.py.
#include <custom_autograd/kernel.h>

#include <vector>

using namespace custom_autograd;

// A tile of 6 rows and 4 vectors of columns: 24 accumulators, which fit AVX-512's 32 registers.
template <typename S>
using Vector __attribute__((vector_size(64), may_alias)) = S;
constexpr int tile_rows = 6, tile_vectors = 4;
template <typename S>
constexpr int64_t tile_columns = tile_vectors * 64 / static_cast<int64_t>(sizeof(S));

// A matrix by its strides, in elements.
template <typename T>
struct Matrix {
  T* data;
  int64_t row, column;
  T* at(int64_t i, int64_t j) const { return data + i * row + j * column; }
};

// sums: (height, tile_columns) = left (height, depth) times panel (depth, tile_columns).
template <int height, typename S>
inline void multiply_tile(const Matrix<const S> left, int64_t first, int64_t depth, const S* panel, S* sums) {
  Vector<S> total[height][tile_vectors] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Vector<S> values[tile_vectors];
    std::memcpy(values, panel + k * tile_columns<S>, sizeof(values));
#pragma GCC unroll 6
    for (int i = 0; i < height; ++i) {
      S factor = *left.at(first + i, k);
#pragma GCC unroll 4
      for (int j = 0; j < tile_vectors; ++j) total[i][j] += factor * values[j];
    }
  }
  // Not memcpy: of what has an address, GCC keeps a copy in memory throughout the loop above.
#pragma GCC unroll 6
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; ++j) reinterpret_cast<Vector<S>*>(sums)[i * tile_vectors + j] = total[i][j];
  }
}

template <typename S>
void multiply_rows(int64_t height, const Matrix<const S>& left, int64_t first, int64_t depth, const S* panel, S* sums) {
  switch (height) {
    case 1: return multiply_tile<1, S>(left, first, depth, panel, sums);
    case 2: return multiply_tile<2, S>(left, first, depth, panel, sums);
    case 3: return multiply_tile<3, S>(left, first, depth, panel, sums);
    case 4: return multiply_tile<4, S>(left, first, depth, panel, sums);
    case 5: return multiply_tile<5, S>(left, first, depth, panel, sums);
    default: return multiply_tile<6, S>(left, first, depth, panel, sums);
  }
}

// The columns of out from first on, as many as a panel has: left (rows, depth) times right (depth, columns). The panel
// of right is widened once, and zero beyond its last column.
template <typename T, typename S = Statistic<T>>
void multiply_panel(int64_t rows, int64_t depth, int64_t columns, int64_t first, const Matrix<const S>& left,
    const Matrix<const T>& right, const Matrix<T>& out, std::vector<S>& panel) {
  constexpr int64_t width = tile_columns<S>;
  int64_t count = std::min(width, columns - first);
  panel.resize(static_cast<size_t>(depth * width));
  if (right.column == 1) {
    for (int64_t k = 0; k < depth; ++k) {
      const T* in = right.at(k, first);
      // Rows lie pages apart, which processors do not foresee. An address behind the end is not read.
      for (int64_t j = 0; j < width; j += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(in + 16 * right.row + j);
      S* values = panel.data() + k * width;
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) values[j] = widen(in[j]);
      std::fill(values + count, values + width, S(0));
    }
  } else {
    std::fill(panel.begin(), panel.end(), S(0));
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t k = 0; k < depth; ++k) panel[k * width + j] = widen(*right.at(k, first + j));
    }
  }
  alignas(64) S sums[tile_rows * width];
  // Tiles of about the same height: 4 and 4 rows take less time than 6 and 2.
  int64_t tiles = (rows + tile_rows - 1) / tile_rows, tallest = tiles ? (rows + tiles - 1) / tiles : 0;
  for (int64_t row = 0, height; row < rows; row += height) {
    height = std::min(tallest, rows - row);
    multiply_rows<S>(height, left, row, depth, panel.data(), sums);
    for (int64_t i = 0; i < height; ++i) {
      T* result = out.at(row + i, first);
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) result[j] = narrow<T>(sums[i * width + j]);
    }
  }
}

// Where groups end, from offsets that ascend within [0, rows]; the first element is 0.
static std::vector<int64_t> group_ends(const Tensor& offsets, int64_t rows) {
  check_contiguous(offsets, "offsets");
  STD_TORCH_CHECK(offsets.dim() == 1 && offsets.scalar_type() == ScalarType::Long, "'offsets' must be (groups,), int64");
  std::vector<int64_t> ends(1, 0);
  for (int64_t group = 0; group < offsets.size(0); ++group) {
    int64_t end = read<int64_t>(offsets)[group];
    STD_TORCH_CHECK(end >= ends.back() && end <= rows, "'offsets' must ascend from 0 to at most ", rows,
        ", the rows of 'a'; element ", group, " is ", end, " after ", ends.back());
    ends.push_back(end);
  }
  return ends;
}

// Every panel of every group, in torch's threads. Panels are the slower index: threads share every group, so that
// groups of unequal size do not leave one of them idle.
template <typename S, typename Work>
void for_panels(int64_t groups, int64_t columns, int64_t multiplications, const Work& work) {
  int64_t panels = (columns + tile_columns<S> - 1) / tile_columns<S>;
  for_rows(panels * groups, multiplications / std::max<int64_t>(1, panels * groups), [&](int64_t first, int64_t last) {
    std::vector<S> panel;
    for (int64_t index = first; index < last; ++index) {
      work(index % groups, index / groups * tile_columns<S>, panel);
    }
  });
}

// a: (rows, depth), contiguous, in the statistic's type; b: (groups, depth, columns), any strides. Returns
// (rows, columns): each row of a times its group's matrix, zero after the last group.
Tensor grouped_mm(const Tensor& a, const Tensor& b, const Tensor& offsets) {
  check_contiguous(a, "a");
  STD_TORCH_CHECK(b.is_cpu() && a.dim() == 2 && b.dim() == 3 && a.size(1) == b.size(1), "'a' must be (rows, depth) and 'b' (groups, depth, columns)");
  int64_t rows = a.size(0), depth = a.size(1), groups = b.size(0), columns = b.size(2);
  STD_TORCH_CHECK(offsets.numel() == groups, "'offsets' must have one element per group of 'b'");
  std::vector<int64_t> ends = group_ends(offsets, rows);
  Tensor out = torch::stable::new_empty(b, {rows, columns}, b.scalar_type());
  for_element_type(b, "b", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(a, statistic_type<T>, "a");
    const S* left = read<S>(a);
    const T* right = read<T>(b);
    T* result = write<T>(out);
    std::memset(static_cast<void*>(result + ends.back() * columns), 0, sizeof(T) * (rows - ends.back()) * columns);
    for_panels<S>(groups, columns, rows * depth * columns, [&](int64_t group, int64_t first, std::vector<S>& panel) {
      int64_t start = ends[group], count = ends[group + 1] - start;
      if (count == 0) return;
      multiply_panel<T>(count, depth, columns, first, {left + start * depth, depth, 1},
          {right + group * b.stride(0), b.stride(1), b.stride(2)}, {result + start * columns, columns, 1}, panel);
    });
  });
  return out;
}

// a: (rows, depth), contiguous, in the statistic's type; g: (rows, columns), contiguous. Returns (groups, depth,
// columns): for each group the sum over its rows of the outer products of a and g.
Tensor grouped_outer(const Tensor& a, const Tensor& g, const Tensor& offsets) {
  check_contiguous(a, "a");
  check_contiguous(g, "g");
  STD_TORCH_CHECK(a.dim() == 2 && g.dim() == 2 && a.size(0) == g.size(0), "'a' must be (rows, depth) and 'g' (rows, columns)");
  int64_t depth = a.size(1), columns = g.size(1);
  std::vector<int64_t> ends = group_ends(offsets, a.size(0));
  int64_t groups = offsets.size(0);
  Tensor out = torch::stable::new_empty(g, {groups, depth, columns}, g.scalar_type());
  for_element_type(g, "g", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(a, statistic_type<T>, "a");
    const S* left = read<S>(a);
    const T* right = read<T>(g);
    T* result = write<T>(out);
    int64_t work = (a.size(0) + groups) * depth * columns;
    for_panels<S>(groups, columns, work, [&](int64_t group, int64_t first, std::vector<S>& panel) {
      int64_t start = ends[group];
      multiply_panel<T>(depth, ends[group + 1] - start, columns, first, {left + start * depth, 1, depth},
          {right + start * columns, columns, 1}, {result + group * depth * columns, columns, 1}, panel);
    });
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("grouped_mm(Tensor a, Tensor b, Tensor offsets) -> Tensor");
  m.def("grouped_outer(Tensor a, Tensor g, Tensor offsets) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("grouped_mm", TORCH_BOX(&grouped_mm));
  m.impl("grouped_outer", TORCH_BOX(&grouped_outer));
}
