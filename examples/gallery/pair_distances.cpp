// Distances of pairs of points, their gradient and the gradient of that: see pair_distances.py.
//
// Where there is a cell, its three vectors are the last rows of `points`: a displacement is then
// points[i] - points[j] - sum_k shift_k cell[k], a sum over rows like any other, and so is its gradient.
#include <custom_autograd/kernel.h>

#include <atomic>
#include <optional>
#include <tuple>
#include <vector>

using namespace custom_autograd;

template <typename S>
struct Vector {
  S x, y, z;
};

template <typename S>
static Vector<S> operator*(S factor, Vector<S> v) {
  return {factor * v.x, factor * v.y, factor * v.z};
}

template <typename S>
static Vector<S> operator-(Vector<S> a, Vector<S> b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z};
}

template <typename S>
static S dot(Vector<S> a, Vector<S> b) {
  return a.x * b.x + a.y * b.y + a.z * b.z;
}

template <typename T>
static Vector<Statistic<T>> row_of(const T* data, int64_t row) {
  return {widen(data[3 * row]), widen(data[3 * row + 1]), widen(data[3 * row + 2])};
}

// To the nearest integer, ties to even, without a call: adding 1.5 * 2^23, or 2^52, leaves no bits after the point.
// From 2^22 on, or 2^51, x has hardly any itself.
inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }
inline double nearest(double x) { return (x + 6755399441055744.0) - 6755399441055744.0; }

// Rows of atoms, and after them those of the cell, which every pair needs and which are widened once.
template <typename T>
struct Rows {
  using S = Statistic<T>;
  const T* data;
  Vector<S> cell[3] = {};
};

template <typename T, bool periodic>
struct Pairs {
  using S = Statistic<T>;
  Rows<T> points;
  const int64_t* pair;
  int64_t count, atoms;
  S inverse[9] = {};  // of the cell: displacement * inverse counts cells

  Rows<T> rows_of(const T* data) const {
    if constexpr (!periodic) return {data};
    return {data, {row_of(data, atoms), row_of(data, atoms + 1), row_of(data, atoms + 2)}};
  }

  // rows[first] - rows[second] - shift * cell, of `points`, or of a direction in which they move.
  Vector<S> difference(const Rows<T>& rows, int64_t p, Vector<S> shift) const {
    Vector<S> d = row_of(rows.data, pair[2 * p]) - row_of(rows.data, pair[2 * p + 1]);
    if constexpr (periodic) d = d - shift.x * rows.cell[0] - shift.y * rows.cell[1] - shift.z * rows.cell[2];
    return d;
  }

  // How many cells the second point of a pair is moved, so that it is the nearest image.
  Vector<S> shift(int64_t p) const {
    if constexpr (!periodic) return {0, 0, 0};
    Vector<S> d = row_of(points.data, pair[2 * p]) - row_of(points.data, pair[2 * p + 1]);
    return {nearest(d.x * inverse[0] + d.y * inverse[3] + d.z * inverse[6]),
        nearest(d.x * inverse[1] + d.y * inverse[4] + d.z * inverse[7]),
        nearest(d.x * inverse[2] + d.y * inverse[5] + d.z * inverse[8])};
  }

  // The adjoint of difference: adds to each row its share; those of the cell are summed over a block, in registers.
  void scatter(S* rows, S* cell, int64_t p, Vector<S> shift, Vector<S> value) const {
    S *a = rows + 3 * pair[2 * p], *b = rows + 3 * pair[2 * p + 1];
    a[0] += value.x, a[1] += value.y, a[2] += value.z;
    b[0] -= value.x, b[1] -= value.y, b[2] -= value.z;
    if constexpr (periodic) {
      cell[0] -= shift.x * value.x, cell[1] -= shift.x * value.y, cell[2] -= shift.x * value.z;
      cell[3] -= shift.y * value.x, cell[4] -= shift.y * value.y, cell[5] -= shift.y * value.z;
      cell[6] -= shift.z * value.x, cell[7] -= shift.z * value.y, cell[8] -= shift.z * value.z;
    }
  }

  // The first pair of a range with an index that is no atom, or -1.
  int64_t find_outside(int64_t first, int64_t last) const {
    uint64_t end = static_cast<uint64_t>(atoms);
    int64_t bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 2 * first; i < 2 * last; ++i) bad |= static_cast<uint64_t>(pair[i]) >= end;
    if (!bad) return -1;
    while (static_cast<uint64_t>(pair[2 * first]) < end && static_cast<uint64_t>(pair[2 * first + 1]) < end) ++first;
    return first;
  }

  // Calls work(first, last, part) on blocks of the pairs of each part, one after the other, and the parts in threads.
  // The indices of a block are checked just before, while they are in the cache; those outside raise at the end.
  template <typename Work>
  void for_blocks(int64_t parts, const Work& work) const {
    constexpr int64_t BLOCK = 1024;
    std::atomic<int64_t> outside{-1};
    for_rows(parts, count / std::max<int64_t>(1, parts) * 8, [&](int64_t first_part, int64_t last_part) {
      for (int64_t part = first_part; part < last_part; ++part) {
        int64_t end = count * (part + 1) / parts;
        for (int64_t first = count * part / parts; first < end; first += BLOCK) {
          int64_t last = std::min(end, first + BLOCK), bad = find_outside(first, last);
          if (bad >= 0) outside = bad;
          if (outside >= 0) return;
          work(first, last, part);
        }
      }
    });
    int64_t p = outside;
    STD_TORCH_CHECK(p < 0, "gallery::pair_distances: pair ", p, " is (", pair[2 * p], ", ", pair[2 * p + 1],
        "), expected two indices of positions, in [0, ", atoms, ")");
  }

  // Calls work(p, rows, cell), which scatters into both, and returns the sums over all pairs. Which pairs are summed one
  // after the other does not depend on the number of threads, so neither does the rounding.
  template <typename Work>
  Tensor sum_over_pairs(const Tensor& like, const Work& work) const {
    int64_t size = like.numel(), rows = size / 3;
    int64_t parts = std::min(count / 8192, 2 * count / std::max<int64_t>(1, rows));  // buffers no larger than the pairs
    parts = std::clamp<int64_t>(parts, 1, 16);
    std::vector<S> sums(size * parts);
    for_blocks(parts, [&](int64_t first, int64_t last, int64_t part) {
      S *rows_of_part = sums.data() + part * size, cell[9] = {};
      for (int64_t p = first; p < last; ++p) work(p, rows_of_part, cell);
      for (int64_t i = 0; periodic && i < 9; ++i) rows_of_part[3 * atoms + i] += cell[i];
    });
    Tensor result = allocate_like(like);
    T* out = write<T>(result);
    for_rows(size, parts, [&](int64_t first, int64_t last) {
      for (int64_t part = 1; part < parts; ++part) {
#pragma omp simd
        for (int64_t i = first; i < last; ++i) sums[i] += sums[part * size + i];
      }
      for (int64_t i = first; i < last; ++i) out[i] = narrow<T>(sums[i]);
    });
    return result;
  }
};

// Checks what all functions below take, and calls work(T{}, Pairs) for the element type, with a cell or without.
template <typename Work>
static void with_pairs(
    const Tensor& points, const Tensor& pairs, const std::optional<Tensor>& inverse, const Work& work) {
  check_contiguous(points, "points");
  check_contiguous(pairs, "pairs");
  STD_TORCH_CHECK(points.dim() == 2 && points.size(1) == 3, "'points' must be (points, 3)");
  STD_TORCH_CHECK(pairs.dim() == 2 && pairs.size(1) == 2 && pairs.scalar_type() == ScalarType::Long,
      "'pairs' must be (pairs, 2), int64");
  for_element_type(points, "positions", [&](auto element) {
    using T = decltype(element);
    const T* data = read<T>(points);
    const int64_t* pair = read<int64_t>(pairs);
    if (!inverse.has_value()) return work(element, Pairs<T, false>{{data}, pair, pairs.size(0), points.size(0)});
    check_contiguous(*inverse, "inverse");
    check_type(*inverse, statistic_type<T>, "inverse");
    STD_TORCH_CHECK(inverse->numel() == 9 && points.size(0) >= 3, "'points' must end with the three rows of the cell");
    Pairs<T, true> all{{data}, pair, pairs.size(0), points.size(0) - 3};
    all.points = all.rows_of(data);
    std::copy_n(read<Statistic<T>>(*inverse), 9, all.inverse);
    return work(element, all);
  });
}

static void check_like(const Tensor& tensor, const Tensor& points, int64_t size, const char* argument) {
  check_contiguous(tensor, argument);
  STD_TORCH_CHECK(tensor.scalar_type() == points.scalar_type() && tensor.numel() == size,
      "'", argument, "' must have the dtype of 'points' and ", size, " elements");
}

Tensor pair_distances(const Tensor& points, const Tensor& pairs, const std::optional<Tensor>& inverse) {
  Tensor distances;
  with_pairs(points, pairs, inverse, [&](auto element, const auto& all) {
    using T = decltype(element);
    distances = allocate(points, {all.count});
    T* out = write<T>(distances);
    all.for_blocks((all.count + 8191) / 8192, [=](int64_t first, int64_t last, int64_t) {
      const auto local = all;  // nothing else can write to it, so that it is not read again for each pair
#pragma omp simd
      for (int64_t p = first; p < last; ++p) {
        auto d = local.difference(local.points, p, local.shift(p));
        out[p] = narrow<T>(std::sqrt(dot(d, d)));
      }
    });
  });
  return distances;
}

// The gradient of sum_p pull_p distance_p: a pair pulls along its unit vector, which is 0 where the distance is.
Tensor pair_forces(
    const Tensor& pull, const Tensor& points, const Tensor& pairs, const std::optional<Tensor>& inverse) {
  Tensor forces;
  with_pairs(points, pairs, inverse, [&](auto element, const auto& all) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_like(pull, points, all.count, "pull");
    const T* factor = read<T>(pull);
    forces = all.sum_over_pairs(points, [=](int64_t p, S* rows, S* cell) {
      auto shift = all.shift(p);
      auto d = all.difference(all.points, p, shift);
      S square = dot(d, d), inverse = square == 0 ? S(0) : S(1) / std::sqrt(square);
      all.scatter(rows, cell, p, shift, widen(factor[p]) * (inverse * d));
    });
  });
  return forces;
}

// With w the difference of `direction` along a pair and u its unit vector: the gradients of sum(pair_forces * direction)
// with respect to pull, u . w, and with respect to points, the scattered pull / distance (w - u (u . w)).
std::tuple<Tensor, Tensor> pair_forces_grad(const Tensor& direction, const Tensor& pull, const Tensor& points,
    const Tensor& pairs, const std::optional<Tensor>& inverse) {
  Tensor along, points_grad;
  with_pairs(points, pairs, inverse, [&](auto element, const auto& all) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_like(pull, points, all.count, "pull");
    check_like(direction, points, points.numel(), "direction");
    const T* factor = read<T>(pull);
    const Rows<T> moved = all.rows_of(read<T>(direction));
    along = allocate_like(pull);
    T* out = write<T>(along);
    points_grad = all.sum_over_pairs(points, [=](int64_t p, S* rows, S* cell) {
      auto shift = all.shift(p);
      auto d = all.difference(all.points, p, shift);
      auto w = all.difference(moved, p, shift);
      S square = dot(d, d), inverse = square == 0 ? S(0) : S(1) / std::sqrt(square);
      auto unit = inverse * d;
      S parallel = dot(unit, w);
      out[p] = narrow<T>(parallel);
      all.scatter(rows, cell, p, shift, widen(factor[p]) * inverse * (w - parallel * unit));
    });
  });
  return {along, points_grad};
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("pair_distances(Tensor points, Tensor pairs, Tensor? inverse) -> Tensor");
  m.def("pair_forces(Tensor pull, Tensor points, Tensor pairs, Tensor? inverse) -> Tensor");
  m.def(
      "pair_forces_grad(Tensor direction, Tensor pull, Tensor points, Tensor pairs, Tensor? inverse) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("pair_distances", TORCH_BOX(&pair_distances));
  m.impl("pair_forces", TORCH_BOX(&pair_forces));
  m.impl("pair_forces_grad", TORCH_BOX(&pair_forces_grad));
}
