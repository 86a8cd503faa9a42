// Products of groups of rows with matrices of their own, and the gradient of the matrices: see grouped_mm.py.
#include <custom_autograd/kernel.h>

#include <vector>

using namespace custom_autograd;

// A tile of 6 rows and 4 vectors of columns: 24 accumulators, which fit AVX-512's 32 registers.
template <typename S>
using Vector __attribute__((vector_size(64), may_alias)) = S;

// From elements that need not lie at a multiple of 64 bytes.
template <typename S>
inline Vector<S> load(const S* place) {
  Vector<S> result;
  std::memcpy(&result, place, sizeof(result));
  return result;
}

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

// A panel of right is read in blocks of so many rows and columns, so that memory is read in long runs.
constexpr int64_t block_depth = 64, panel_tiles = 8;
template <typename S>
constexpr int64_t panel_columns = panel_tiles * tile_columns<S>;

// Asks for elements of the next block, for the second cache. An address behind the end is not read.
template <typename T>
inline void prefetch(const T* place) {
  __builtin_prefetch(place, 0, 2);
}

// sums: (height, tile_columns), to which left (height, depth) times right (depth, tile_columns) is added. The rows of
// right lie `step` elements apart, and what is `ahead` of them is asked for.
template <int height, typename S>
inline void multiply_tile(
    const Matrix<const S> left, int64_t depth, const S* right, int64_t step, int64_t ahead, bool is_first, S* sums) {
  // Not memcpy for sums: of what has an address, GCC keeps a copy in memory throughout the loop below.
  auto* kept = reinterpret_cast<Vector<S>*>(sums);
  Vector<S> total[height][tile_vectors] = {};
  if (!is_first) {
#pragma GCC unroll 6
    for (int i = 0; i < height; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < tile_vectors; ++j) total[i][j] = kept[i * tile_vectors + j];
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vector<S> values[tile_vectors];
    const S* row = right + k * step;
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; ++j) {
      values[j] = load(row + j * (64 / sizeof(S)));
      prefetch(row + ahead + j * (64 / sizeof(S)));
    }
#pragma GCC unroll 6
    for (int i = 0; i < height; ++i) {
      S factor = *left.at(i, k);
#pragma GCC unroll 4
      for (int j = 0; j < tile_vectors; ++j) total[i][j] += factor * values[j];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; ++j) kept[i * tile_vectors + j] = total[i][j];
  }
}

template <typename S>
void multiply_rows(int64_t height, const Matrix<const S>& left, int64_t depth, const S* right, int64_t step,
    int64_t ahead, bool is_first, S* sums) {
  switch (height) {
    case 1: return multiply_tile<1, S>(left, depth, right, step, ahead, is_first, sums);
    case 2: return multiply_tile<2, S>(left, depth, right, step, ahead, is_first, sums);
    case 3: return multiply_tile<3, S>(left, depth, right, step, ahead, is_first, sums);
    case 4: return multiply_tile<4, S>(left, depth, right, step, ahead, is_first, sums);
    case 5: return multiply_tile<5, S>(left, depth, right, step, ahead, is_first, sums);
    default: return multiply_tile<6, S>(left, depth, right, step, ahead, is_first, sums);
  }
}

// Widens rows of right from its first on into a block of tile_columns, which is zero behind the last column.
template <typename T, typename S = Statistic<T>>
void widen_block(int64_t depth, int64_t count, const Matrix<const T>& right, S* block) {
  constexpr int64_t width = tile_columns<S>;
  if (right.column != 1) {
    std::fill(block, block + depth * width, S(0));
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t k = 0; k < depth; ++k) block[k * width + j] = widen(*right.at(k, j));
    }
    return;
  }
  for (int64_t k = 0; k < depth; ++k) {
    const T* in = right.at(k, 0);
    S* values = block + k * width;
    const T* next = in + block_depth * right.row;
    for (int64_t j = 0; j < width; j += 64 / static_cast<int64_t>(sizeof(T))) prefetch(next + j);
    if (count == width) {  // a number that the compiler knows
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) values[j] = widen(in[j]);
    } else {
      for (int64_t j = 0; j < width; ++j) values[j] = j < count ? widen(in[j]) : S(0);
    }
  }
}

// A row of a tile; not Vector, whose alignment would be lost in the name of std::vector.
template <typename S>
struct alignas(64) TileRow {
  S values[tile_columns<S>];
};

// What a thread keeps from panel to panel: a block of right, and the sums of all rows.
template <typename S>
struct Scratch {
  std::vector<TileRow<S>> block = std::vector<TileRow<S>>(block_depth), sums;
};

// The columns of out from first on, as many as a panel has: left (rows, depth) times right (depth, columns). Tiles are
// multiplied where they are if they need not be widened.
template <typename T, typename S = Statistic<T>>
void multiply_panel(int64_t rows, int64_t depth, int64_t columns, int64_t first, const Matrix<const S>& left,
    const Matrix<const T>& right, const Matrix<T>& out, Scratch<S>& scratch) {
  constexpr int64_t width = tile_columns<S>;
  int64_t last = std::min(columns, first + panel_columns<S>);
  // Of a single block the sums are complete at once, and no tile needs those of another.
  bool is_single = depth <= block_depth;
  scratch.sums.resize(static_cast<size_t>(is_single ? tile_rows : panel_tiles * rows));
  S *all_sums = scratch.sums.data()->values, *widened = scratch.block.data()->values;
  // Tiles of about the same height: 4 and 4 rows take less time than 6 and 2.
  int64_t tiles = (rows + tile_rows - 1) / tile_rows, tallest = tiles ? (rows + tiles - 1) / tiles : 0;
  int64_t start = 0;
  do {  // once for no depth too: sums of nothing are zero
    int64_t block = std::min(block_depth, depth - start);
    for (int64_t column = first; column < last; column += width) {
      int64_t count = std::min(width, last - column), step = width, ahead = 0;
      const S* values = widened;
      if (std::is_same_v<T, S> && right.column == 1 && count == width) {
        values = reinterpret_cast<const S*>(right.at(start, column));
        step = right.row;
        ahead = block_depth * step;
      } else {
        widen_block<T>(block, count, {right.at(start, column), right.row, right.column}, widened);
      }
      for (int64_t row = 0, height; row < rows; row += height) {
        height = std::min(tallest, rows - row);
        S* sums = is_single ? all_sums : all_sums + (column - first) * rows + row * width;
        Matrix<const S> factors{left.at(row, start), left.row, left.column};
        multiply_rows<S>(height, factors, block, values, step, row == 0 ? ahead : 0, start == 0, sums);
        if (start + block < depth) continue;
        for (int64_t i = 0; i < height; ++i) {
          T* result = out.at(row + i, column);
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) result[j] = narrow<T>(sums[i * width + j]);
        }
      }
    }
    start += block_depth;
  } while (start < depth);
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
  int64_t panels = (columns + panel_columns<S> - 1) / panel_columns<S>;
  for_rows(panels * groups, multiplications / std::max<int64_t>(1, panels * groups), [&](int64_t first, int64_t last) {
    Scratch<S> scratch;
    for (int64_t index = first; index < last; ++index) {
      work(index % groups, index / groups * panel_columns<S>, scratch);
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
  Tensor out = allocate(b, {rows, columns}, b.scalar_type());
  for_element_type(b, "b", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(a, statistic_type<T>, "a");
    const S* left = read<S>(a);
    const T* right = read<T>(b);
    T* result = write<T>(out);
    std::memset(static_cast<void*>(result + ends.back() * columns), 0, sizeof(T) * (rows - ends.back()) * columns);
    for_panels<S>(groups, columns, rows * depth * columns, [&](int64_t group, int64_t first, Scratch<S>& scratch) {
      int64_t start = ends[group], count = ends[group + 1] - start;
      if (count == 0) return;
      multiply_panel<T>(count, depth, columns, first, {left + start * depth, depth, 1},
          {right + group * b.stride(0), b.stride(1), b.stride(2)}, {result + start * columns, columns, 1}, scratch);
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
  Tensor out = allocate(g, {groups, depth, columns}, g.scalar_type());
  for_element_type(g, "g", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(a, statistic_type<T>, "a");
    const S* left = read<S>(a);
    const T* right = read<T>(g);
    T* result = write<T>(out);
    int64_t work = (a.size(0) + groups) * depth * columns;
    for_panels<S>(groups, columns, work, [&](int64_t group, int64_t first, Scratch<S>& scratch) {
      int64_t start = ends[group];
      multiply_panel<T>(depth, ends[group + 1] - start, columns, first, {left + start * depth, 1, depth},
          {right + start * columns, columns, 1}, {result + group * depth * columns, columns, 1}, scratch);
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
