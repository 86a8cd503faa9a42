// Attention by tiles with an online softmax, and its gradients: see flash_attention.py and flash_attention_varlen.py.
//
// Scores are kept transposed, keys x queries: then the statistics of the softmax are vectors of queries, and keys and
// values are left operands or plain rows, so that nothing of theirs is ever transposed.
#include <custom_autograd/matmul.h>

#include <optional>
#include <tuple>
#include <vector>

using namespace custom_autograd;

namespace {

constexpr int64_t query_block = 96, key_block = 96;  // multiples of every register block; scores fit the second cache

// The rows of a tensor by sequence, head and position; the features of a row are contiguous.
template <typename T>
struct Rows {
  T* data;
  int64_t sequence, head, row;
  T* at(int64_t s, int64_t h, int64_t position) const { return data + s * sequence + h * head + position * row; }
};

// Where a sequence's queries and keys lie: index is 0 where all sequences are packed into one.
struct Sequence {
  int64_t index, first_query, queries, first_key, keys;
  // The last query sees the last key (bottom-right alignment), as in FlashAttention since 2.1.
  int64_t diagonal() const { return keys - queries; }
};

struct Problem {
  std::vector<Sequence> sequences;
  int64_t heads, kv_heads, features, value_features;
  double scale;
  bool causal;
  int64_t group() const { return heads / kv_heads; }
  // How many of a sequence's keys the queries before `end` see.
  int64_t visible_keys(const Sequence& s, int64_t end) const {
    return causal ? std::clamp<int64_t>(end + s.diagonal(), 0, s.keys) : s.keys;
  }
};

// Added to the scores; a dimension that is broadcast has stride 0. Without data there is no bias.
template <typename T>
struct Bias {
  const T* data = nullptr;
  int64_t sequence = 0, head = 0, query = 0, key = 0;
};

template <typename T>
struct Inputs {
  Rows<const T> q, k, v;
  Bias<T> bias;
};

template <typename T>
struct Given {  // to a backward: the gradient of the output, and per query lse and delta
  Rows<const T> out_grad;
  Rows<const Statistic<T>> lse, delta;
};

// A block of queries of one head, and a block of the keys they meet.
struct Place {
  Sequence sequence;
  int64_t head, first_query, queries, first_key = 0, keys = 0;
};

// rows x features in the type of the sums, padded with zeros to whole register blocks.
template <typename T, typename S>
void copy_rows(const T* in, int64_t stride, int64_t rows, int64_t features, S scale, S* out, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < features; ++i) out[r * width + i] = S(widen(in[r * stride + i])) * scale;
    for (int64_t i = features; i < width; ++i) out[r * width + i] = 0;
  }
}

// The same, transposed: features x query_block.
template <typename T, typename S>
void copy_transposed(const T* in, int64_t stride, int64_t rows, int64_t features, S scale, S* out) {
  for (int64_t i = 0; i < features; ++i) {
    for (int64_t r = 0; r < rows; ++r) out[i * query_block + r] = S(widen(in[r * stride + i])) * scale;
    for (int64_t r = rows; r < query_block; ++r) out[i * query_block + r] = 0;
  }
}

// Rows as a right operand: where they lie, if their type and width allow it, else copied.
template <typename T, typename S>
Matrix<const S> as_right(const T* in, int64_t stride, int64_t rows, int64_t features, S* copy) {
  if constexpr (std::is_same_v<T, S>) {
    if (features == padded<S>(features)) return {in, stride};
  }
  copy_rows(in, stride, rows, features, S(1), copy, padded<S>(features));
  return {copy, padded<S>(features)};
}

// Rows as a left operand, which needs no padding.
template <typename T, typename S>
Left<S> as_left(const T* in, int64_t stride, int64_t rows, int64_t features, S* copy) {
  if constexpr (std::is_same_v<T, S>) {
    return {in, stride, 1};
  } else {
    copy_rows(in, stride, rows, features, S(1), copy, padded<S>(features));
    return {copy, padded<S>(features), 1};
  }
}

// The scores of a place, keys x queries: q arrives scaled and transposed; what is not visible is -infinity.
template <typename T, typename S>
void compute_scores(const Problem& problem, const Bias<T>& bias, const Place& at, Left<S> k, const S* q, S* scores) {
  int64_t columns = padded<S>(at.queries);
  multiply<S>(k, {q, query_block}, {scores, query_block}, at.keys, columns, problem.features, false);
  if (bias.data != nullptr) {
    const T* start = bias.data + at.sequence.index * bias.sequence + at.head * bias.head +
        at.first_query * bias.query + at.first_key * bias.key;
    for (int64_t c = 0; c < at.keys; ++c) {
      const T* column = start + c * bias.key;
      for (int64_t r = 0; r < at.queries; ++r) scores[c * query_block + r] += widen(column[r * bias.query]);
    }
  }
  if (!problem.causal) return;
  for (int64_t c = 0; c < at.keys; ++c) {
    int64_t seen_from = at.first_key + c - at.sequence.diagonal() - at.first_query;
    int64_t hidden = std::clamp<int64_t>(seen_from, 0, columns);
    std::fill_n(scores + c * query_block, hidden, -std::numeric_limits<S>::infinity());
  }
}

// Of infinity the differences are NaN.
template <typename S>
inline S finite_or_zero(S value) {
  return std::isinf(value) ? S(0) : value;
}

// Replaces scores by exponentials, relative to the largest so far; what was summed before is multiplied by `factor`.
template <typename S>
void exponentiate(S* scores, int64_t keys, int64_t columns, S* largest, S* sum, S* factor) {
  S larger[query_block], shift[query_block];
  std::copy_n(largest, columns, larger);
  for (int64_t c = 0; c < keys; ++c) {
    const S* row = scores + c * query_block;
#pragma omp simd
    for (int64_t r = 0; r < columns; ++r) larger[r] = row[r] > larger[r] ? row[r] : larger[r];
  }
  for (int64_t r = 0; r < columns; ++r) {
    shift[r] = finite_or_zero(larger[r]);
    factor[r] = exponential(largest[r] - shift[r]);
    sum[r] *= factor[r];
    largest[r] = larger[r];
  }
  for (int64_t c = 0; c < keys; ++c) {
    S* row = scores + c * query_block;
#pragma omp simd
    for (int64_t r = 0; r < columns; ++r) {
      row[r] = exponential(row[r] - shift[r]);
      sum[r] += row[r];
    }
  }
}

template <typename T>
struct ForwardScratch {
  using S = Statistic<T>;
  int64_t width, value_width;
  Scratch<S> q, k, v, scores, sums;
  explicit ForwardScratch(const Problem& p)
      : width(padded<S>(p.features)), value_width(padded<S>(p.value_features)),
        q(width * query_block), k(width * key_block), v(value_width * key_block), scores(query_block * key_block),
        sums(value_width * query_block) {}
};

// One block of queries against all keys that it sees.
template <typename T>
void forward_block(const Problem& p, const Inputs<T>& in, Place at, const Rows<T>& out,
    const Rows<Statistic<T>>& lse, const ForwardScratch<T>& scratch) {
  using S = Statistic<T>;
  const Sequence& s = at.sequence;
  int64_t columns = padded<S>(at.queries), kv_head = at.head / p.group();
  S largest[query_block], sum[query_block], factor[query_block];
  std::fill_n(largest, query_block, -std::numeric_limits<S>::infinity());
  std::fill_n(sum, query_block, S(0));
  S* sums = scratch.sums.data();
  std::fill_n(sums, query_block * scratch.value_width, S(0));
  copy_transposed(in.q.at(s.index, at.head, s.first_query + at.first_query), in.q.row, at.queries, p.features,
      S(p.scale), scratch.q.data());
  int64_t visible = p.visible_keys(s, at.first_query + at.queries);
  for (at.first_key = 0; at.first_key < visible; at.first_key += key_block) {
    at.keys = std::min(key_block, visible - at.first_key);
    int64_t position = s.first_key + at.first_key;
    auto k = as_left<T, S>(in.k.at(s.index, kv_head, position), in.k.row, at.keys, p.features, scratch.k.data());
    auto v = as_right<T, S>(in.v.at(s.index, kv_head, position), in.v.row, at.keys, p.value_features, scratch.v.data());
    S* scores = scratch.scores.data();
    compute_scores(p, in.bias, at, k, scratch.q.data(), scores);
    exponentiate(scores, at.keys, columns, largest, sum, factor);
    for (int64_t r = 0; r < at.queries; ++r) {
      if (factor[r] == S(1)) continue;
      S* row = sums + r * scratch.value_width;
#pragma omp simd
      for (int64_t i = 0; i < scratch.value_width; ++i) row[i] *= factor[r];
    }
    multiply<S>({scores, 1, query_block}, v, {sums, scratch.value_width}, at.queries, scratch.value_width, at.keys, true);
  }
  for (int64_t r = 0; r < at.queries; ++r) {
    int64_t position = s.first_query + at.first_query + r;
    // No key is visible, or all have a bias of -infinity: the output is zero.
    S share = sum[r] == S(0) ? S(0) : S(1) / sum[r];
    *lse.at(s.index, at.head, position) = std::log(sum[r]) + finite_or_zero(largest[r]);
    T* result = out.at(s.index, at.head, position);
    const S* row = sums + r * scratch.value_width;
#pragma omp simd
    for (int64_t i = 0; i < p.value_features; ++i) result[i] = narrow<T>(row[i] * share);
  }
}

// The blocks of queries of all sequences. In a causal problem the later ones cost more: each thread gets of both.
std::vector<Place> blocks_of_queries(const Problem& problem) {
  std::vector<Place> blocks;
  for (const Sequence& s : problem.sequences) {
    int64_t number = (s.queries + query_block - 1) / query_block;
    for (int64_t i = 0; i < number; ++i) {
      int64_t first = query_block * (i % 2 == 0 ? i / 2 : number - 1 - i / 2);
      blocks.push_back({s, 0, first, std::min(query_block, s.queries - first)});
    }
  }
  return blocks;
}

template <typename T>
void forward(const Problem& p, const Inputs<T>& in, const Rows<T>& out, const Rows<Statistic<T>>& lse) {
  std::vector<Place> blocks = blocks_of_queries(p);
  int64_t number = static_cast<int64_t>(blocks.size());
  torch::stable::parallel_for(0, number * p.heads, 1, [&](int64_t first, int64_t last) {
    ForwardScratch<T> scratch(p);
    for (int64_t task = first; task < last; ++task) {
      Place at = blocks[task % number];
      at.head = task / number;
      forward_block(p, in, at, out, lse, scratch);
    }
  });
}

// What the gradients of one block of queries need, and the tiles that they pass through.
template <typename T>
struct BackwardScratch {
  using S = Statistic<T>;
  int64_t width, value_width;
  Scratch<S> q, q_rows, out_grad, out_grad_rows, k, v, weights, score_grads, q_grad;
  explicit BackwardScratch(const Problem& p)
      : width(padded<S>(p.features)), value_width(padded<S>(p.value_features)),
        q(width * query_block), q_rows(width * query_block), out_grad(value_width * query_block),
        out_grad_rows(value_width * query_block), k(width * key_block), v(value_width * key_block),
        weights(query_block * key_block), score_grads(query_block * key_block), q_grad(width * query_block) {}

  void take_queries(const Problem& p, const Inputs<T>& in, const Given<T>& given, const Place& at) {
    const Sequence& s = at.sequence;
    const T* queries = in.q.at(s.index, at.head, s.first_query + at.first_query);
    const T* grads = given.out_grad.at(s.index, at.head, s.first_query + at.first_query);
    copy_rows(queries, in.q.row, at.queries, p.features, S(p.scale), q_rows.data(), width);
    copy_transposed(queries, in.q.row, at.queries, p.features, S(p.scale), q.data());
    copy_rows(grads, given.out_grad.row, at.queries, p.value_features, S(1), out_grad_rows.data(), value_width);
    copy_transposed(grads, given.out_grad.row, at.queries, p.value_features, S(1), out_grad.data());
  }

  // The softmax of a tile and the gradient of its scores: weight * (out_grad . v - delta).
  void take_keys(const Problem& p, const Inputs<T>& in, const Given<T>& given, const Place& at) {
    const Sequence& s = at.sequence;
    int64_t columns = padded<S>(at.queries), kv_head = at.head / p.group(), position = s.first_key + at.first_key;
    auto keys = as_left<T, S>(in.k.at(s.index, kv_head, position), in.k.row, at.keys, p.features, k.data());
    auto values = as_left<T, S>(in.v.at(s.index, kv_head, position), in.v.row, at.keys, p.value_features, v.data());
    compute_scores(p, in.bias, at, keys, q.data(), weights.data());
    multiply<S>(values, {out_grad.data(), query_block}, {score_grads.data(), query_block}, at.keys, columns,
        p.value_features, false);
    S lse[query_block] = {}, delta[query_block] = {};
    for (int64_t r = 0; r < at.queries; ++r) {
      S value = *given.lse.at(s.index, at.head, s.first_query + at.first_query + r);
      // Where nothing is visible every weight is exp(-infinity - infinity), which is 0.
      lse[r] = value == -std::numeric_limits<S>::infinity() ? -value : value;
      delta[r] = *given.delta.at(s.index, at.head, s.first_query + at.first_query + r);
    }
    for (int64_t c = 0; c < at.keys; ++c) {
      S *weight = weights.data() + c * query_block, *grad = score_grads.data() + c * query_block;
#pragma omp simd
      for (int64_t r = 0; r < columns; ++r) {
        weight[r] = exponential(weight[r] - lse[r]);
        grad[r] = weight[r] * (grad[r] - delta[r]);
      }
    }
  }
};

// One block of queries against the keys it sees: their gradients are added to k_grad and v_grad, its own is written.
template <typename T>
void backward_block(const Problem& p, const Inputs<T>& in, const Given<T>& given, Place at, const Rows<T>& q_grad,
    Statistic<T>* k_grad, Statistic<T>* v_grad, BackwardScratch<T>& scratch) {
  using S = Statistic<T>;
  const Sequence& s = at.sequence;
  int64_t width = scratch.width, value_width = scratch.value_width;
  S *weights = scratch.weights.data(), *score_grads = scratch.score_grads.data(), *grad = scratch.q_grad.data();
  std::fill_n(grad, query_block * width, S(0));
  scratch.take_queries(p, in, given, at);
  int64_t visible = p.visible_keys(s, at.first_query + at.queries);
  for (at.first_key = 0; at.first_key < visible; at.first_key += key_block) {
    at.keys = std::min(key_block, visible - at.first_key);
    scratch.take_keys(p, in, given, at);
    multiply<S>({weights, query_block, 1}, {scratch.out_grad_rows.data(), value_width},
        {v_grad + at.first_key * value_width, value_width}, at.keys, value_width, at.queries, true);
    multiply<S>({score_grads, query_block, 1}, {scratch.q_rows.data(), width},
        {k_grad + at.first_key * width, width}, at.keys, width, at.queries, true);
    const T* keys = in.k.at(s.index, at.head / p.group(), s.first_key + at.first_key);
    auto k = as_right<T, S>(keys, in.k.row, at.keys, p.features, scratch.k.data());
    multiply<S>({score_grads, 1, query_block}, k, {grad, width}, at.queries, width, at.keys, true);
  }
  for (int64_t r = 0; r < at.queries; ++r) {
    T* result = q_grad.at(s.index, at.head, s.first_query + at.first_query + r);
    for (int64_t i = 0; i < p.features; ++i) result[i] = narrow<T>(grad[r * width + i] * S(p.scale));
  }
}

// Sums what several threads have added up, and writes it.
template <typename T>
void write_sum(const std::vector<Statistic<T>*>& parts, int64_t rows, int64_t features, T* out, int64_t stride) {
  int64_t width = padded<Statistic<T>>(features);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < features; ++i) {
      Statistic<T> sum = 0;
      for (const Statistic<T>* part : parts) sum += part[r * width + i];
      out[r * stride + i] = narrow<T>(sum);
    }
  }
}

// A head of keys and values is one unit of work, or several where there are more threads than heads: each unit adds
// up gradients of its own, in as much memory as that head's keys and values take.
template <typename T>
void backward(const Problem& p, const Inputs<T>& in, const Given<T>& given, const Rows<T>& q_grad,
    const Rows<T>& k_grad, const Rows<T>& v_grad) {
  using S = Statistic<T>;
  int64_t units = static_cast<int64_t>(p.sequences.size()) * p.kv_heads;
  if (units == 0) return;
  int64_t threads = torch::stable::get_num_threads(), parts = (threads + units - 1) / units;
  std::vector<std::optional<Scratch<S>>> sums(units * parts);
  int64_t width = padded<S>(p.features), value_width = padded<S>(p.value_features);
  auto write_unit = [&](int64_t unit) {
    const Sequence& s = p.sequences[unit / p.kv_heads];
    std::vector<S*> k_parts, v_parts;
    for (int64_t part = 0; part < parts; ++part) {
      k_parts.push_back(sums[unit * parts + part]->data());
      v_parts.push_back(k_parts.back() + s.keys * width);
    }
    int64_t head = unit % p.kv_heads;
    write_sum(k_parts, s.keys, p.features, k_grad.at(s.index, head, s.first_key), k_grad.row);
    write_sum(v_parts, s.keys, p.value_features, v_grad.at(s.index, head, s.first_key), v_grad.row);
    for (int64_t part = 0; part < parts; ++part) sums[unit * parts + part].reset();
  };
  torch::stable::parallel_for(0, units * parts, 1, [&](int64_t first, int64_t last) {
    BackwardScratch<T> scratch(p);
    for (int64_t task = first; task < last; ++task) {
      int64_t unit = task / parts;
      const Sequence& s = p.sequences[unit / p.kv_heads];
      S* k_sum = sums[task].emplace(s.keys * (width + value_width)).data();
      std::fill_n(k_sum, s.keys * (width + value_width), S(0));
      int64_t blocks = (s.queries + query_block - 1) / query_block;
      for (int64_t i = task % parts; i < blocks * p.group(); i += parts) {
        int64_t start = i % blocks * query_block;
        Place at{s, unit % p.kv_heads * p.group() + i / blocks, start, std::min(query_block, s.queries - start)};
        backward_block(p, in, given, at, q_grad, k_sum, k_sum + s.keys * width, scratch);
      }
      if (parts == 1) write_unit(unit);
    }
  });
  if (parts == 1) return;
  torch::stable::parallel_for(0, units, 1, [&](int64_t first, int64_t last) {
    for (int64_t unit = first; unit < last; ++unit) write_unit(unit);
  });
}

// The gradient of a bias, whose dimensions may be broadcast: each tile of it belongs to one unit of work, which sums
// over all tiles of scores that the tile was added to.
template <typename T>
struct BiasTile {
  using S = Statistic<T>;
  const Problem& problem;
  const Inputs<T>& in;
  const Given<T>& given;
  int64_t sizes[4];  // of the bias: sequences, heads, queries, keys; 1 where it is broadcast
  S sums[key_block * query_block];

  // Calls work(i) where `own` is the only one, or with every index where the dimension is broadcast.
  template <typename Work>
  static void for_each(int64_t size, int64_t own, int64_t all, const Work& work) {
    for (int64_t i = size == 1 ? 0 : own; i < (size == 1 ? all : own + 1); ++i) work(i);
  }

  void add(const Place& at, const S* grads) {
    for (int64_t c = 0; c < at.keys; ++c) {
      S* sum = sums + (sizes[3] == 1 ? 0 : c * query_block);
      for (int64_t r = 0; r < at.queries; ++r) sum[sizes[2] == 1 ? 0 : r] += grads[c * query_block + r];
    }
  }

  void fill(int64_t sequence, int64_t head, int64_t query, int64_t key, BackwardScratch<T>& scratch) {
    std::fill_n(sums, key_block * query_block, S(0));
    int64_t count = static_cast<int64_t>(problem.sequences.size());
    for_each(sizes[0], sequence, count, [&](int64_t s) {
      const Sequence& where = problem.sequences[s];
      int64_t query_blocks = (where.queries + query_block - 1) / query_block;
      int64_t key_blocks = (where.keys + key_block - 1) / key_block;
      for_each(sizes[1], head, problem.heads, [&](int64_t h) {
        for_each(sizes[2], query, query_blocks, [&](int64_t i) {
          Place at{where, h, i * query_block, std::min(query_block, where.queries - i * query_block)};
          scratch.take_queries(problem, in, given, at);
          for_each(sizes[3], key, key_blocks, [&](int64_t j) {
            at.first_key = j * key_block;
            at.keys = std::min(key_block, problem.visible_keys(where, at.first_query + at.queries) - at.first_key);
            if (at.keys <= 0) return;
            scratch.take_keys(problem, in, given, at);
            add(at, scratch.score_grads.data());
          });
        });
      });
    });
  }
};

template <typename T>
void bias_backward(const Problem& p, const Inputs<T>& in, const Given<T>& given, const int64_t (&sizes)[4], T* out) {
  int64_t query_tiles = (sizes[2] + query_block - 1) / query_block, key_tiles = (sizes[3] + key_block - 1) / key_block;
  torch::stable::parallel_for(0, sizes[0] * sizes[1] * query_tiles * key_tiles, 1, [&](int64_t first, int64_t last) {
    BackwardScratch<T> scratch(p);
    auto tile = std::make_unique<BiasTile<T>>(BiasTile<T>{p, in, given, {sizes[0], sizes[1], sizes[2], sizes[3]}, {}});
    for (int64_t task = first; task < last; ++task) {
      int64_t key = task % key_tiles, query = task / key_tiles % query_tiles, rows = task / key_tiles / query_tiles;
      tile->fill(rows / sizes[1], rows % sizes[1], query, key, scratch);
      for (int64_t r = 0; r < std::min(query_block, sizes[2] - query * query_block); ++r) {
        T* result = out + ((rows * sizes[2]) + query * query_block + r) * sizes[3] + key * key_block;
        for (int64_t c = 0; c < std::min(key_block, sizes[3] - key * key_block); ++c) {
          result[c] = narrow<T>(tile->sums[c * query_block + r]);
        }
      }
    }
  });
}

void check_rows(const Tensor& tensor, const Tensor& q, const char* argument) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.dim() == q.dim(), "'", argument, "' must be a CPU tensor with ", q.dim(),
      " dimensions");
  STD_TORCH_CHECK(tensor.scalar_type() == q.scalar_type(), "'", argument, "' must have the dtype of 'q'");
  STD_TORCH_CHECK(tensor.numel() == 0 || tensor.size(-1) == 1 || tensor.stride(-1) == 1, "the last dimension of '", argument,
      "' must be contiguous");
}

// (sequences, heads, length, features), or (length, heads, features) for packed sequences.
template <typename T>
Rows<T> rows_of(const Tensor& tensor) {
  T* data = static_cast<T*>(const_cast<void*>(tensor.const_data_ptr()));
  if (tensor.dim() == 3) return {data, 0, tensor.stride(1), tensor.stride(0)};
  return {data, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// The statistics of queries: (sequences, heads, length), or (heads, length).
template <typename S>
Rows<S> statistics_of(const Tensor& tensor) {
  S* data = static_cast<S*>(const_cast<void*>(tensor.const_data_ptr()));
  if (tensor.dim() == 2) return {data, 0, tensor.stride(0), tensor.stride(1)};
  return {data, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// The ends of packed sequences are looked at before any becomes an address.
std::vector<int64_t> read_offsets(const Tensor& offsets, int64_t total, const char* argument) {
  check_contiguous(offsets, argument);
  STD_TORCH_CHECK(offsets.scalar_type() == ScalarType::Long && offsets.dim() == 1 && offsets.numel() > 0,
      "'", argument, "' must be int64 of shape (sequences + 1,)");
  const int64_t* data = read<int64_t>(offsets);
  std::vector<int64_t> values(data, data + offsets.numel());
  STD_TORCH_CHECK(values.front() == 0 && values.back() == total && std::is_sorted(values.begin(), values.end()),
      "'", argument, "' must rise from 0 to the number of rows, ", total);
  return values;
}

std::vector<Sequence> packed_sequences(
    const Tensor& q, const Tensor& k, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k) {
  std::vector<int64_t> queries = read_offsets(cu_seqlens_q, q.size(0), "cu_seqlens_q");
  std::vector<int64_t> keys = read_offsets(cu_seqlens_k, k.size(0), "cu_seqlens_k");
  STD_TORCH_CHECK(queries.size() == keys.size(), "'cu_seqlens_q' and 'cu_seqlens_k' must have the same length");
  std::vector<Sequence> sequences;
  for (size_t i = 0; i + 1 < queries.size(); ++i) {
    sequences.push_back({0, queries[i], queries[i + 1] - queries[i], keys[i], keys[i + 1] - keys[i]});
  }
  return sequences;
}

std::vector<Sequence> equal_sequences(const Tensor& q, const Tensor& k) {
  STD_TORCH_CHECK(q.size(0) == k.size(0), "'k' must have as many sequences as 'q'");
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i < q.size(0); ++i) sequences.push_back({i, 0, q.size(2), 0, k.size(2)});
  return sequences;
}

Problem make_problem(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal) {
  STD_TORCH_CHECK(q.dim() == 3 || q.dim() == 4, "'q' must be (sequences, heads, length, features), or packed");
  check_rows(q, q, "q");
  check_rows(k, q, "k");
  check_rows(v, q, "v");
  for (int64_t dim = 0; dim + 1 < q.dim(); ++dim) {
    STD_TORCH_CHECK(k.size(dim) == v.size(dim), "'k' and 'v' must have the same shape but for the features");
  }
  STD_TORCH_CHECK(q.size(-1) == k.size(-1), "'q' and 'k' must have the same number of features");
  int64_t heads = q.size(1), kv_heads = k.size(1);
  STD_TORCH_CHECK(kv_heads == 0 ? heads == 0 : heads % kv_heads == 0, "the heads of 'k' must divide those of 'q'");
  return {{}, heads, kv_heads, q.size(-1), v.size(-1), scale, causal};
}

template <typename T>
Bias<T> bias_of(const std::optional<Tensor>& bias, const Tensor& q, const Tensor& k) {
  if (!bias.has_value()) return {};
  STD_TORCH_CHECK(bias->is_cpu() && bias->scalar_type() == q.scalar_type() && bias->dim() == 4,
      "'bias' must be a CPU tensor with the dtype of 'q' and 4 dimensions");
  int64_t full[4] = {q.size(0), q.size(1), q.size(2), k.size(2)}, stride[4];
  for (int64_t dim = 0; dim < 4; ++dim) {
    STD_TORCH_CHECK(bias->size(dim) == 1 || bias->size(dim) == full[dim], "'bias' must broadcast to the scores");
    stride[dim] = bias->size(dim) == 1 ? 0 : bias->stride(dim);
  }
  return {read<T>(*bias), stride[0], stride[1], stride[2], stride[3]};
}

std::tuple<Tensor, Tensor> run_forward(
    const Problem& p, const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias) {
  std::vector<int64_t> shape(q.sizes().begin(), q.sizes().end()), rows(shape.begin(), shape.end() - 1);
  shape.back() = p.value_features;
  if (q.dim() == 3) rows = {q.size(1), q.size(0)};
  Tensor out = allocate(q, shape), lse;
  for_element_type(q, "q", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    lse = allocate(q, rows, statistic_type<T>);
    Inputs<T> in{rows_of<const T>(q), rows_of<const T>(k), rows_of<const T>(v), bias_of<T>(bias, q, k)};
    forward<T>(p, in, rows_of<T>(out), statistics_of<S>(lse));
  });
  return {out, lse};
}

template <typename T>
Given<T> given_of(const Problem& p, const Tensor& q, const Tensor& out_grad, const Tensor& lse, const Tensor& delta) {
  check_rows(out_grad, q, "out_grad");
  for (int64_t dim = 0; dim + 1 < q.dim(); ++dim) {
    STD_TORCH_CHECK(out_grad.size(dim) == q.size(dim), "'out_grad' must have the shape of the output");
  }
  STD_TORCH_CHECK(out_grad.size(-1) == p.value_features, "'out_grad' must have the features of 'v'");
  for (const Tensor* tensor : {&lse, &delta}) {
    check_type(*tensor, statistic_type<T>, tensor == &lse ? "lse" : "delta");
    STD_TORCH_CHECK(tensor->dim() == q.dim() - 1, "'lse' and 'delta' must have one number per query");
    for (int64_t dim = 0; dim + 1 < q.dim(); ++dim) {
      int64_t size = q.size(q.dim() == 3 ? 1 - dim : dim);
      STD_TORCH_CHECK(tensor->size(dim) == size, "'lse' and 'delta' must have one number per query");
    }
  }
  using S = Statistic<T>;
  return {rows_of<const T>(out_grad), statistics_of<const S>(lse), statistics_of<const S>(delta)};
}

std::tuple<Tensor, Tensor, Tensor> run_backward(const Problem& p, const Tensor& out_grad, const Tensor& q,
    const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias, const Tensor& lse, const Tensor& delta) {
  Tensor q_grad = allocate(q, q.sizes());
  Tensor k_grad = allocate(k, k.sizes()), v_grad = allocate(v, v.sizes());
  for_element_type(q, "q", [&](auto element) {
    using T = decltype(element);
    Inputs<T> in{rows_of<const T>(q), rows_of<const T>(k), rows_of<const T>(v), bias_of<T>(bias, q, k)};
    Given<T> given = given_of<T>(p, q, out_grad, lse, delta);
    backward<T>(p, in, given, rows_of<T>(q_grad), rows_of<T>(k_grad), rows_of<T>(v_grad));
  });
  return {q_grad, k_grad, v_grad};
}

}  // namespace

// Returns out: (sequences, heads, queries, value features) and lse: (sequences, heads, queries).
std::tuple<Tensor, Tensor> flash_attention(const Tensor& q, const Tensor& k, const Tensor& v,
    const std::optional<Tensor>& bias, double scale, bool causal) {
  STD_TORCH_CHECK(q.dim() == 4, "'q' must be (sequences, heads, length, features)");
  Problem p = make_problem(q, k, v, scale, causal);
  p.sequences = equal_sequences(q, k);
  return run_forward(p, q, k, v, bias);
}

// Returns the gradients of q, k and v. delta: per query the sum of out_grad * out, minus the gradient of lse.
std::tuple<Tensor, Tensor, Tensor> flash_attention_grad(const Tensor& out_grad, const Tensor& q, const Tensor& k,
    const Tensor& v, const std::optional<Tensor>& bias, const Tensor& lse, const Tensor& delta, double scale,
    bool causal) {
  STD_TORCH_CHECK(q.dim() == 4, "'q' must be (sequences, heads, length, features)");
  Problem p = make_problem(q, k, v, scale, causal);
  p.sequences = equal_sequences(q, k);
  return run_backward(p, out_grad, q, k, v, bias, lse, delta);
}

// Returns the gradient of the bias, in its shape.
Tensor flash_attention_bias_grad(const Tensor& out_grad, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& bias, const Tensor& lse, const Tensor& delta, double scale, bool causal) {
  STD_TORCH_CHECK(q.dim() == 4, "'q' must be (sequences, heads, length, features)");
  Problem p = make_problem(q, k, v, scale, causal);
  p.sequences = equal_sequences(q, k);
  Tensor bias_grad = allocate(bias, bias.sizes());
  for_element_type(q, "q", [&](auto element) {
    using T = decltype(element);
    Inputs<T> in{rows_of<const T>(q), rows_of<const T>(k), rows_of<const T>(v), bias_of<T>(bias, q, k)};
    Given<T> given = given_of<T>(p, q, out_grad, lse, delta);
    bias_backward<T>(p, in, given, {bias.size(0), bias.size(1), bias.size(2), bias.size(3)}, write<T>(bias_grad));
  });
  return bias_grad;
}

// Packed sequences: q: (rows, heads, features); sequence i is rows cu_seqlens_q[i] to cu_seqlens_q[i + 1].
std::tuple<Tensor, Tensor> flash_attention_varlen(const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, double scale, bool causal) {
  STD_TORCH_CHECK(q.dim() == 3, "'q' must be (rows, heads, features)");
  Problem p = make_problem(q, k, v, scale, causal);
  p.sequences = packed_sequences(q, k, cu_seqlens_q, cu_seqlens_k);
  return run_forward(p, q, k, v, std::nullopt);
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_varlen_grad(const Tensor& out_grad, const Tensor& q, const Tensor& k,
    const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, const Tensor& lse, const Tensor& delta,
    double scale, bool causal) {
  STD_TORCH_CHECK(q.dim() == 3, "'q' must be (rows, heads, features)");
  Problem p = make_problem(q, k, v, scale, causal);
  p.sequences = packed_sequences(q, k, cu_seqlens_q, cu_seqlens_k);
  return run_backward(p, out_grad, q, k, v, std::nullopt, lse, delta);
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("flash_attention(Tensor q, Tensor k, Tensor v, Tensor? bias, float scale, bool causal) -> (Tensor, Tensor)");
  m.def("flash_attention_grad(Tensor out_grad, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor lse, Tensor delta, "
        "float scale, bool causal) -> (Tensor, Tensor, Tensor)");
  m.def("flash_attention_bias_grad(Tensor out_grad, Tensor q, Tensor k, Tensor v, Tensor bias, Tensor lse, "
        "Tensor delta, float scale, bool causal) -> Tensor");
  m.def("flash_attention_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, float scale, "
        "bool causal) -> (Tensor, Tensor)");
  m.def("flash_attention_varlen_grad(Tensor out_grad, Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, "
        "Tensor cu_seqlens_k, Tensor lse, Tensor delta, float scale, bool causal) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("flash_attention", TORCH_BOX(&flash_attention));
  m.impl("flash_attention_grad", TORCH_BOX(&flash_attention_grad));
  m.impl("flash_attention_bias_grad", TORCH_BOX(&flash_attention_bias_grad));
  m.impl("flash_attention_varlen", TORCH_BOX(&flash_attention_varlen));
  m.impl("flash_attention_varlen_grad", TORCH_BOX(&flash_attention_varlen_grad));
}
