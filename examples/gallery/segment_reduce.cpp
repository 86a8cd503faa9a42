// Sum, mean and maximum of consecutive rows: see segment_reduce.py.
#include <custom_autograd/kernel.h>

#include <tuple>
#include <vector>

using namespace custom_autograd;

// Rows of one segment are reduced in registers: whole rows of at most ROW features, of longer ones TILE at a time.
constexpr int64_t ROW = 128, TILE = 64;

static int64_t tile_of(int64_t features) { return features <= ROW ? features : TILE; }

// Where a tile is a part of each row, processors do not foresee which lines follow: these are asked for some rows ahead,
// also those of the next segments. An address behind the end is not read. Whole rows they foresee, and this slows down.
template <typename T>
static void prefetch_tile(const T* in, int64_t features) {
  constexpr int64_t ahead = 16, line = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < TILE; i += line) __builtin_prefetch(in + ahead * features + i);
}

// Every offset is looked at before one becomes an address.
static void check_offsets(const Tensor& offsets, int64_t rows) {
  check_contiguous(offsets, "offsets");
  STD_TORCH_CHECK(offsets.dim() == 1 && offsets.numel() > 0 && offsets.scalar_type() == ScalarType::Long,
      "'offsets' must be int64 of shape (segments + 1,)");
  const int64_t* offset = read<int64_t>(offsets);
  int64_t segments = offsets.numel() - 1;
  STD_TORCH_CHECK(offset[0] == 0, "'offsets' must begin with 0, found ", offset[0]);
  for (int64_t s = 0; s < segments; ++s) {
    STD_TORCH_CHECK(offset[s] <= offset[s + 1],
        "'offsets' must not decrease, found ", offset[s], " before ", offset[s + 1], " at segment ", s);
  }
  STD_TORCH_CHECK(offset[segments] == rows,
      "'offsets' must end with the number of rows, ", rows, ", found ", offset[segments]);
}

static std::vector<int64_t> with_rows(const Tensor& tensor, int64_t rows) {
  STD_TORCH_CHECK(tensor.dim() > 0, "'x' must have a dimension of rows");
  std::vector<int64_t> shape(tensor.sizes().begin(), tensor.sizes().end());
  shape.front() = rows;
  return shape;
}

static int64_t features_of(const Tensor& tensor) {
  int64_t features = 1;
  for (int64_t dim = 1; dim < tensor.dim(); ++dim) features *= tensor.size(dim);
  return features;
}

// Calls work(segment, first row, last row), segments in parallel. Threads share out rows, not segments, so that a few
// long segments do not wait for one thread: segment s stands at offset[s] + s, which differs for empty segments too.
template <typename Work>
static void for_segments(const Tensor& offsets, int64_t features, const Work& work) {
  const int64_t* offset = read<int64_t>(offsets);
  int64_t segments = offsets.numel() - 1;
  for_rows(offset[segments] + segments, features, [=](int64_t first, int64_t last) {
    auto begin_at = [=](int64_t position) {
      int64_t low = 0, high = segments;
      while (low < high) {
        int64_t middle = (low + high) / 2;
        if (offset[middle] + middle < position) low = middle + 1;
        else high = middle;
      }
      return low;
    };
    for (int64_t s = begin_at(first), end = begin_at(last); s < end; ++s) work(s, offset[s], offset[s + 1]);
  });
}

template <typename T>
static Statistic<T> sum_of_column(const T* in, int64_t count) {
  Statistic<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += widen(in[i]);
  return sum;
}

// The sum of a tile's rows, divided by count; WIDTH is that of the tile, which the compiler knows so that sums stay in
// registers, or else at least as large.
template <int64_t WIDTH, typename T, typename S = Statistic<T>>
static void sum_tile(const T* in, int64_t rows, int64_t features, int64_t width, S count, T* result) {
  S sum[WIDTH] = {};
  for (int64_t row = 0; row < rows; ++row, in += features) {
    if constexpr (WIDTH == TILE) prefetch_tile(in, features);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) sum[i] += widen(in[i]);
  }
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) result[i] = narrow<T>(sum[i] / count);
}

// The sum of each segment's rows, or their mean; 0 for no rows.
static Tensor segment_sum(const Tensor& x, const Tensor& offsets, bool mean) {
  check_contiguous(x, "x");
  std::vector<int64_t> shape = with_rows(x, offsets.numel() - 1);
  check_offsets(offsets, x.size(0));
  int64_t features = features_of(x);
  Tensor out = allocate(x, shape);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    const T* in = read<T>(x);
    T* result = write<T>(out);
    for_segments(offsets, features, [=](int64_t segment, int64_t first, int64_t last) {
      S count = mean && last > first ? S(last - first) : S(1);
      if (features == 1) {
        result[segment] = narrow<T>(sum_of_column(in + first, last - first) / count);
        return;
      }
      for (int64_t f = 0, tile = tile_of(features); f < features; f += tile) {
        int64_t width = std::min(tile, features - f), rows = last - first;
        const T* start = in + first * features + f;
        T* place = result + segment * features + f;
        if (width == ROW) sum_tile<ROW>(start, rows, ROW, ROW, count, place);
        else if (width == TILE) sum_tile<TILE>(start, rows, features, TILE, count, place);
        else sum_tile<ROW>(start, rows, features, width, count, place);
      }
    });
  });
  return out;
}

// Positions are as wide as the statistic, so that a vector of one goes with a vector of the other.
template <typename S>
using Position = std::conditional_t<sizeof(S) == 8, int64_t, int32_t>;

// Segments of more rows than a position counts are looked at piece by piece.
constexpr int64_t PIECE = int64_t(1) << 30;

template <typename T, typename S = Statistic<T>>
static void max_row(const T* line, int64_t width, Position<S> row, S* best, Position<S>* at) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    S value = widen(line[i]);
    bool is_larger = !(value <= best[i]) & (best[i] == best[i]);  // a NaN is larger, and nothing than it
    best[i] = is_larger ? value : best[i];
    at[i] = is_larger ? row : at[i];
  }
}

// The larger of best and the rows, and which row it is: -1 for best itself.
template <typename T, typename S = Statistic<T>>
static void max_tile(const T* in, int64_t rows, int64_t features, int64_t width, S* best, Position<S>* at) {
  std::fill(at, at + width, Position<S>(-1));
  if (width == ROW) {  // a width that the compiler knows: best and at stay in registers
    for (int64_t row = 0; row < rows; ++row, in += ROW) max_row(in, ROW, Position<S>(row), best, at);
  } else if (width == TILE) {
    for (int64_t row = 0; row < rows; ++row, in += features) {
      prefetch_tile(in, features);
      max_row(in, TILE, Position<S>(row), best, at);
    }
  } else {
    for (int64_t row = 0; row < rows; ++row, in += features) max_row(in, width, Position<S>(row), best, at);
  }
}

// The maximum of each segment's rows and the first row that has it, NaN above all; -infinity and `rows` for no rows.
static std::tuple<Tensor, Tensor> segment_max(const Tensor& x, const Tensor& offsets) {
  check_contiguous(x, "x");
  std::vector<int64_t> shape = with_rows(x, offsets.numel() - 1);
  int64_t rows = x.size(0), features = features_of(x);
  check_offsets(offsets, rows);
  Tensor out = allocate(x, shape);
  Tensor argmax = allocate(x, shape, ScalarType::Long);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    const T* in = read<T>(x);
    T* result = write<T>(out);
    int64_t* places = write<int64_t>(argmax);
    for_segments(offsets, features, [=](int64_t segment, int64_t first, int64_t last) {
      S best[ROW];
      Position<S> at[ROW];
      for (int64_t f = 0, tile = tile_of(features); f < features; f += tile) {
        int64_t width = std::min(tile, features - f);
        const T* start = in + first * features + f;
        int64_t* place = places + segment * features + f;
        for (int64_t i = 0; i < width; ++i) {
          best[i] = last > first ? widen(start[i]) : -std::numeric_limits<S>::infinity();
          place[i] = last > first ? first : rows;
        }
        for (int64_t row = first + 1; row < last; row += PIECE) {
          max_tile(in + row * features + f, std::min(PIECE, last - row), features, width, best, at);
          for (int64_t i = 0; i < width; ++i) place[i] = at[i] < 0 ? place[i] : row + at[i];
        }
        for (int64_t i = 0; i < width; ++i) result[segment * features + f + i] = narrow<T>(best[i]);
      }
    });
  });
  return {out, argmax};
}

// x: (segments, ...). Returns (rows, ...): at each row that of its segment, divided by the segment's rows for the mean.
Tensor segment_spread(const Tensor& x, const Tensor& offsets, int64_t rows, bool mean) {
  check_contiguous(x, "x");
  std::vector<int64_t> shape = with_rows(x, rows);
  check_offsets(offsets, rows);
  STD_TORCH_CHECK(offsets.numel() == x.size(0) + 1, "'offsets' must have one element more than 'x' has segments");
  int64_t features = features_of(x);
  Tensor out = allocate(x, shape);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    const T* in = read<T>(x);
    T* result = write<T>(out);
    for_segments(offsets, features, [=](int64_t segment, int64_t first, int64_t last) {
      if (first == last) return;
      const T* source = in + segment * features;
      T *row = result + first * features, *end = result + last * features;
      if (mean) {
        S count = S(last - first);
#pragma omp simd
        for (int64_t i = 0; i < features; ++i) row[i] = narrow<T>(widen(source[i]) / count);
        source = row;
        row += features;
      }
      for (; row < end; row += features) std::memcpy(row, source, sizeof(T) * features);
    });
  });
  return out;
}

enum Reduction : int64_t { SUM, MEAN, MAX };

// The argmax is empty where there is no maximum. The third has no elements: its shape holds the number of rows.
std::tuple<Tensor, Tensor, Tensor> segment_reduce(const Tensor& x, const Tensor& offsets, int64_t reduction) {
  auto [out, argmax] = reduction == MAX
      ? segment_max(x, offsets)
      : std::tuple(segment_sum(x, offsets, reduction == MEAN), allocate(x, {0}, ScalarType::Long));
  return {out, argmax, allocate(x, {x.size(0), 0}, ScalarType::Long)};
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("segment_reduce(Tensor x, Tensor offsets, int reduction) -> (Tensor, Tensor, Tensor)");
  m.def("segment_spread(Tensor x, Tensor offsets, int rows, bool mean) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("segment_reduce", TORCH_BOX(&segment_reduce));
  m.impl("segment_spread", TORCH_BOX(&segment_spread));
}
