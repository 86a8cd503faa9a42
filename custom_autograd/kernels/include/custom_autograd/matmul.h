// Products of small matrices, register-blocked in the compiler's vector types: what tiled CPU kernels are made of.
//
// The blocks of one product should lie in the first or second level of the cache; larger matrices are for BLAS.
#pragma once

#include <custom_autograd/kernel.h>

#include <memory>
#include <new>

namespace custom_autograd {

// One vector register; and as many rows of two vectors as leave registers for the operands.
#if defined(__AVX512F__)
constexpr int64_t register_bytes = 64, register_rows = 12;
#elif defined(__AVX__)
constexpr int64_t register_bytes = 32, register_rows = 6;
#elif defined(__aarch64__)
constexpr int64_t register_bytes = 16, register_rows = 12;
#else
constexpr int64_t register_bytes = 16, register_rows = 6;
#endif

template <typename S>
struct Register {
  typedef S type __attribute__((vector_size(register_bytes)));
};

// The number of columns of a register block: right operands and results are padded to a multiple of it.
template <typename S>
constexpr int64_t block_columns = 2 * register_bytes / static_cast<int64_t>(sizeof(S));

template <typename S>
inline int64_t padded(int64_t columns) {
  return (columns + block_columns<S> - 1) / block_columns<S> * block_columns<S>;
}

// The left operand: element (m, k) is data[m * row + k * column], so that a transposed matrix costs nothing.
template <typename S>
struct Left {
  const S* data;
  int64_t row, column;
};

// The right operand or a result: element (k, n) is data[k * row + n].
template <typename S>
struct Matrix {
  S* data;
  int64_t row;
};

// What a block does with the result that is there: nothing, begins with it, or adds it to its own sums.
enum class Before { none, first, last };

// Rows x block_columns of a product, in registers.
template <int Rows, typename S>
inline void multiply_block(Left<S> a, Matrix<const S> b, Matrix<S> c, int64_t depth, Before before) {
  using Vector = typename Register<S>::type;
  constexpr int64_t lanes = block_columns<S> / 2;
  Vector sum[Rows][2];
#pragma GCC unroll 12
  for (int m = 0; m < Rows; ++m) {
    if (before == Before::first) {
      std::memcpy(&sum[m], c.data + m * c.row, sizeof(sum[m]));
    } else {
      sum[m][0] = sum[m][1] = Vector{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vector low, high;
    std::memcpy(&low, b.data + k * b.row, sizeof(low));
    std::memcpy(&high, b.data + k * b.row + lanes, sizeof(high));
#pragma GCC unroll 12
    for (int m = 0; m < Rows; ++m) {
      S factor = a.data[m * a.row + k * a.column];
      sum[m][0] += factor * low;
      sum[m][1] += factor * high;
    }
  }
  if (before == Before::last) {
#pragma GCC unroll 12
    for (int m = 0; m < Rows; ++m) {
      Vector added[2];
      std::memcpy(&added, c.data + m * c.row, sizeof(added));
      sum[m][0] += added[0];
      sum[m][1] += added[1];
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < Rows; ++m) std::memcpy(c.data + m * c.row, &sum[m], sizeof(sum[m]));
}

// The same for any depth. Further parts of a long sum begin with 0, so that its rounding is that of a short one.
template <int Rows, typename S>
inline void multiply_strip(Left<S> a, Matrix<const S> b, Matrix<S> c, int64_t depth, bool add) {
  constexpr int64_t part = 128;
  multiply_block<Rows>(a, b, c, std::min(part, depth), add ? Before::first : Before::none);
  for (int64_t k = part; k < depth; k += part) {
    Left<S> left{a.data + k * a.column, a.row, a.column};
    Matrix<const S> right{b.data + k * b.row, b.row};
    multiply_block<Rows>(left, right, c, std::min(part, depth - k), Before::last);
  }
}

// c = a b, or c += a b, one register block after the other; columns is a multiple of block_columns.
template <typename S>
inline void multiply(
    Left<S> a, Matrix<const S> b, Matrix<S> c, int64_t rows, int64_t columns, int64_t depth, bool add) {
  for (int64_t m = 0; m < rows;) {
    int64_t left = rows - m, taken = left >= register_rows ? register_rows : left >= 4 ? 4 : 1;
    Left<S> strip{a.data + m * a.row, a.row, a.column};
    for (int64_t n = 0; n < columns; n += block_columns<S>) {
      Matrix<const S> right{b.data + n, b.row};
      Matrix<S> result{c.data + m * c.row + n, c.row};
      if (taken == register_rows) {
        multiply_strip<register_rows>(strip, right, result, depth, add);
      } else if (taken == 4) {
        multiply_strip<4>(strip, right, result, depth, add);
      } else {
        multiply_strip<1>(strip, right, result, depth, add);
      }
    }
    m += taken;
  }
}

// Working memory of one thread, aligned to a cache line.
template <typename S>
class Scratch {
 public:
  explicit Scratch(int64_t elements)
      : memory_(static_cast<S*>(::operator new(std::max<int64_t>(1, elements) * sizeof(S), alignment))) {}
  S* data() const { return memory_.get(); }

 private:
  static constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(S* memory) const { ::operator delete(memory, alignment); }
  };
  std::unique_ptr<S, Free> memory_;
};

}  // namespace custom_autograd
