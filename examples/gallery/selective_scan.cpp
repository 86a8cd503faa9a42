// The selective scan and its gradients: see selective_scan.py. A lane is a channel: sixteen of them advance together, so
// that no sum over the state crosses lanes, and any state size is as good as another.
#include <custom_autograd/kernel.h>
#include <custom_autograd/softplus.h>

#include <optional>
#include <tuple>
#include <vector>

using namespace custom_autograd;
using Optional = std::optional<Tensor>;

constexpr int64_t LANES = 16;
constexpr int64_t CHUNK = 64;   // steps whose states the backward has in memory at once
constexpr int64_t GROUPS = 16;  // parts of the channels, whose shares of the gradients of B and C are summed at the end

// A (batch, rows, length) tensor by its strides.
template <typename T>
struct Sequence {
  const T* data = nullptr;
  int64_t batch = 0, row = 0, time = 0;

  Sequence() = default;
  explicit Sequence(const Tensor& tensor)
      : data(read<T>(tensor)), batch(tensor.stride(0)), row(tensor.stride(1)), time(tensor.stride(2)) {}

  Statistic<T> at(int64_t b, int64_t r, int64_t t) const { return widen(data[b * batch + r * row + t * time]); }

  // tile[step * LANES + lane], zero in lanes that have no channel.
  void load(int64_t b, int64_t channel, int64_t lanes, int64_t first, int64_t steps, Statistic<T>* tile) const {
    const T* start = data + b * batch + channel * row + first * time;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      for (int64_t t = 0; t < steps; ++t) tile[t * LANES + lane] = widen(start[lane * row + t * time]);
    }
    for (int64_t lane = lanes; lane < LANES; ++lane) {
      for (int64_t t = 0; t < steps; ++t) tile[t * LANES + lane] = 0;
    }
  }
};

// Writes a tile to rows of a contiguous (batch, channels, length) tensor.
template <typename T>
void store(const Statistic<T>* tile, T* rows, int64_t length, int64_t lanes, int64_t steps) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    for (int64_t t = 0; t < steps; ++t) rows[lane * length + t] = narrow<T>(tile[t * LANES + lane]);
  }
}

// The inputs; what each channel has for itself is contiguous, in the statistic's type.
template <typename T>
struct Inputs {
  using S = Statistic<T>;
  int64_t batch, channels, length, state, blocks;
  Sequence<T> u, delta, B, C, z;
  const S *A, *D = nullptr, *bias = nullptr, *initial = nullptr;
  bool softplus;

  // Lane by lane, values[n * LANES + lane], of a (channels, width) table.
  void load_own(const S* table, int64_t channel, int64_t lanes, int64_t width, S* values) const {
    std::fill(values, values + width * LANES, S(0));
    for (int64_t lane = 0; table != nullptr && lane < lanes; ++lane) {
      for (int64_t n = 0; n < width; ++n) values[n * LANES + lane] = table[(channel + lane) * width + n];
    }
  }

  // The steps of the recurrence and, in `slope`, if given, their derivative by delta.
  void load_steps(int64_t b, int64_t channel, int64_t lanes, int64_t first, int64_t steps, S* tile, S* slope) const {
    delta.load(b, channel, lanes, first, steps, tile);
    S own[LANES];
    load_own(bias, channel, lanes, 1, own);
    for (int64_t t = 0; t < steps; ++t) {
      for (int64_t lane = 0; lane < LANES; ++lane) tile[t * LANES + lane] += own[lane];
    }
    if (slope != nullptr && !softplus) std::fill(slope, slope + steps * LANES, S(1));
    if (!softplus) return;
#pragma omp simd
    for (int64_t i = 0; i < (slope == nullptr ? 0 : steps * LANES); ++i) slope[i] = softplus_slope(tile[i]);
#pragma omp simd
    for (int64_t i = 0; i < steps * LANES; ++i) tile[i] = custom_autograd::softplus(tile[i]);
  }
};

// One step of one state of sixteen channels: h becomes factor h + step u B; y gains C h.
template <typename S>
inline void advance(S* __restrict h, S* __restrict y, S* __restrict factor, const S* __restrict rate,
    const S* __restrict step, const S* __restrict drive, S b, S c) {
#pragma omp simd
  for (int64_t lane = 0; lane < LANES; ++lane) {
    factor[lane] = exponential(step[lane] * rate[lane]);
    h[lane] = factor[lane] * h[lane] + drive[lane] * b;
    y[lane] += c * h[lane];
  }
}

// What drives the states, step u, and the outputs without them, D u.
template <typename S>
void begin_outputs(const S* skip, const S* __restrict u, const S* __restrict step, int64_t steps, S* __restrict drive,
    S* __restrict y) {
  for (int64_t i = 0; i < steps * LANES; ++i) drive[i] = step[i] * u[i];
  std::fill(y, y + steps * LANES, S(0));
  for (int64_t t = 0; skip != nullptr && t < steps; ++t) {
    for (int64_t lane = 0; lane < LANES; ++lane) y[t * LANES + lane] = skip[lane] * u[t * LANES + lane];
  }
}

static void check_shape(const Tensor& tensor, std::initializer_list<int64_t> shape, const char* argument) {
  bool fits = tensor.is_cpu() && tensor.dim() == static_cast<int64_t>(shape.size());
  int64_t dim = 0;
  for (int64_t size : shape) fits = fits && tensor.size(dim++) == size;
  STD_TORCH_CHECK(fits, "'", argument, "' has another shape or device than the others have");
}

template <typename T>
Inputs<T> checked(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
    const Optional& D, const Optional& z, const Optional& bias, const Optional& initial, bool softplus) {
  using S = Statistic<T>;
  STD_TORCH_CHECK(u.dim() == 3 && A.dim() == 2, "'u' must be (batch, channels, length) and 'A' (channels, state)");
  Inputs<T> in;
  in.batch = u.size(0), in.channels = u.size(1), in.length = u.size(2), in.state = A.size(1);
  in.blocks = (in.channels + LANES - 1) / LANES, in.softplus = softplus;
  auto sequence = [&](const Tensor& tensor, int64_t rows, const char* argument) {
    check_shape(tensor, {in.batch, rows, in.length}, argument);
    STD_TORCH_CHECK(tensor.scalar_type() == u.scalar_type(), "'", argument, "' must have the dtype of 'u'");
    return Sequence<T>(tensor);
  };
  auto own = [&](const Tensor& tensor, std::initializer_list<int64_t> shape, const char* argument) {
    check_shape(tensor, shape, argument);
    check_contiguous(tensor, argument);
    check_type(tensor, statistic_type<T>, argument);
    return read<S>(tensor);
  };
  in.u = sequence(u, in.channels, "u"), in.delta = sequence(delta, in.channels, "delta");
  in.B = sequence(B, in.state, "B"), in.C = sequence(C, in.state, "C");
  if (z) in.z = sequence(*z, in.channels, "z");
  in.A = own(A, {in.channels, in.state}, "A");
  if (D) in.D = own(*D, {in.channels}, "D");
  if (bias) in.bias = own(*bias, {in.channels}, "delta_bias");
  if (initial) in.initial = own(*initial, {in.batch, in.channels, in.state}, "initial_state");
  return in;
}

// Scans one block of channels of one sequence; `starts`, if given, gets the state at the start of each chunk.
template <typename T>
void scan_block(const Inputs<T>& in, int64_t b, int64_t channel, int64_t lanes, T* out, Statistic<T>* last,
    Statistic<T>* starts) {
  using S = Statistic<T>;
  int64_t wide = in.state * LANES, tile = CHUNK * LANES;
  std::vector<S> memory(2 * wide + 5 * tile + 2 * LANES);
  S *rate = memory.data(), *h = rate + wide, *u = h + wide, *step = u + tile, *z = step + tile, *y = z + tile;
  S *drive = y + tile, *factor = drive + tile, *skip = factor + LANES;
  in.load_own(in.A, channel, lanes, in.state, rate);
  in.load_own(in.D, channel, lanes, 1, skip);
  in.load_own(in.initial == nullptr ? nullptr : in.initial + b * in.channels * in.state, channel, lanes, in.state, h);
  for (int64_t first = 0; first < in.length; first += CHUNK) {
    int64_t steps = std::min(CHUNK, in.length - first);
    if (starts != nullptr) std::copy(h, h + wide, starts + first / CHUNK * wide);
    in.u.load(b, channel, lanes, first, steps, u);
    in.load_steps(b, channel, lanes, first, steps, step, nullptr);
    begin_outputs(in.D == nullptr ? nullptr : skip, u, step, steps, drive, y);
    for (int64_t t = 0; t < steps; ++t) {
      for (int64_t n = 0; n < in.state; ++n) {
        advance(h + n * LANES, y + t * LANES, factor, rate + n * LANES, step + t * LANES, drive + t * LANES,
            in.B.at(b, n, first + t), in.C.at(b, n, first + t));
      }
    }
    if (out == nullptr) continue;
    if (in.z.data != nullptr) {
      in.z.load(b, channel, lanes, first, steps, z);
#pragma omp simd
      for (int64_t i = 0; i < steps * LANES; ++i) y[i] *= z[i] / (1 + exponential(-z[i]));
    }
    store(y, out + (b * in.channels + channel) * in.length + first, in.length, lanes, steps);
  }
  for (int64_t lane = 0; last != nullptr && lane < lanes; ++lane) {
    S* own = last + (b * in.channels + channel + lane) * in.state;
    for (int64_t n = 0; n < in.state; ++n) own[n] = h[n * LANES + lane];
  }
}

std::tuple<Tensor, Tensor> selective_scan(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
    const Tensor& C, const Optional& D, const Optional& z, const Optional& delta_bias, const Optional& initial_state,
    bool delta_softplus) {
  Tensor out, last;
  for_element_type(u, "u", [&](auto element) {
    using T = decltype(element);
    auto in = checked<T>(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus);
    out = allocate(u, {in.batch, in.channels, in.length});
    last = allocate(A, {in.batch, in.channels, in.state});
    auto *out_data = write<T>(out);
    auto *last_data = write<Statistic<T>>(last);
    for_rows(in.batch * in.blocks, LANES * in.length * in.state, [&](int64_t first, int64_t end) {
      for (int64_t task = first; task < end; ++task) {
        int64_t channel = task % in.blocks * LANES;
        int64_t lanes = std::min(LANES, in.channels - channel);
        scan_block<T>(in, task / in.blocks, channel, lanes, out_data, last_data, nullptr);
      }
    });
  });
  return {out, last};
}

// What the backward writes. `own` holds per sequence and channel the gradients of A, D, delta_bias and initial_state;
// `shared` per sequence and group those of B and C: (batch, groups, 2, state, length).
template <typename T>
struct Gradients {
  using S = Statistic<T>;
  Sequence<T> out;
  const S* last;
  T *u, *delta, *z = nullptr;
  S *A, *D, *bias, *initial, *shared;
};

// Memory for one chunk of one block, (step, state, lane) or (step, lane), and for the shares of a whole group.
template <typename S>
struct Chunk {
  std::vector<S> factor, history, B, C, u, step, slope, drive, y, z, out, rate, skip;

  explicit Chunk(int64_t wide)
      : factor(CHUNK * wide), history((CHUNK + 1) * wide), B(CHUNK * wide), C(CHUNK * wide), u(CHUNK * LANES),
        step(u), slope(u), drive(u), y(u), z(u), out(u), rate(wide), skip(LANES) {}
};

// The states after each step, from the one before the first, and what C makes of them.
template <typename T>
void recompute(const Inputs<T>& in, int64_t b, int64_t first, int64_t steps, Chunk<Statistic<T>>& chunk) {
  using S = Statistic<T>;
  int64_t wide = in.state * LANES;
  const S* skip = in.D == nullptr ? nullptr : chunk.skip.data();
  begin_outputs(skip, chunk.u.data(), chunk.step.data(), steps, chunk.drive.data(), chunk.y.data());
  for (int64_t t = 0; t < steps; ++t) {
    for (int64_t n = 0; n < in.state; ++n) {
      S *h = &chunk.history[(t + 1) * wide + n * LANES], *before = h - wide;
      std::copy(before, before + LANES, h);
      advance(h, &chunk.y[t * LANES], &chunk.factor[t * wide + n * LANES], &chunk.rate[n * LANES],
          &chunk.step[t * LANES], &chunk.drive[t * LANES], in.B.at(b, n, first + t), in.C.at(b, n, first + t));
    }
  }
}

// One state of sixteen channels, one step back in time; h_grad is the gradient of h after the step, then before it.
template <typename S>
inline void retreat(const S* __restrict h_after, const S* __restrict h_before, const S* __restrict factor,
    const S* __restrict rate, const S* __restrict step, const S* __restrict drive, const S* __restrict y_grad, S b, S c,
    int64_t lanes, S* __restrict h_grad, S* __restrict b_share, S* __restrict c_share, S* __restrict rate_grad,
    S* __restrict term_grad, S* __restrict step_grad) {
#pragma omp simd
  for (int64_t lane = 0; lane < LANES; ++lane) {
    S grad = h_grad[lane] + y_grad[lane] * c;
    S through = grad * h_before[lane] * factor[lane];
    c_share[lane] += lane < lanes ? y_grad[lane] * h_after[lane] : S(0);
    b_share[lane] += lane < lanes ? grad * drive[lane] : S(0);
    rate_grad[lane] += through * step[lane];
    step_grad[lane] += through * rate[lane];
    term_grad[lane] += grad * b;
    h_grad[lane] = factor[lane] * grad;
  }
}

// One chunk of one block, backwards. h_grad and own_grads (of A, then D, then delta_bias) go on from chunk to chunk.
template <typename T>
void chunk_grad(const Inputs<T>& in, const Gradients<T>& grads, int64_t b, int64_t channel, int64_t lanes,
    int64_t first, int64_t steps, Chunk<Statistic<T>>& chunk, Statistic<T>* h_grad, Statistic<T>* own_grads) {
  using S = Statistic<T>;
  int64_t wide = in.state * LANES, place = (b * in.channels + channel) * in.length + first;
  in.load_own(in.A, channel, lanes, in.state, chunk.rate.data());
  in.load_own(in.D, channel, lanes, 1, chunk.skip.data());
  in.u.load(b, channel, lanes, first, steps, chunk.u.data());
  in.load_steps(b, channel, lanes, first, steps, chunk.step.data(), chunk.slope.data());
  grads.out.load(b, channel, lanes, first, steps, chunk.out.data());
  recompute(in, b, first, steps, chunk);
  if (in.z.data != nullptr) {
    in.z.load(b, channel, lanes, first, steps, chunk.z.data());
    S *z = chunk.z.data(), *y = chunk.y.data(), *out = chunk.out.data();
#pragma omp simd
    for (int64_t i = 0; i < steps * LANES; ++i) {
      S gate = 1 / (1 + exponential(-z[i])), silu = z[i] * gate;
      z[i] = out[i] * y[i] * gate * (1 + z[i] - silu);
      out[i] *= silu;
    }
    store(z, grads.z + place, in.length, lanes, steps);
  }
  S *skip_grad = own_grads + wide, *bias_grad = skip_grad + LANES;
  for (int64_t t = steps - 1; t >= 0; --t) {
    S *u = &chunk.u[t * LANES], *step = &chunk.step[t * LANES], *y_grad = &chunk.out[t * LANES];
    S term_grad[LANES] = {}, step_grad[LANES] = {};
    for (int64_t n = 0; n < in.state; ++n) {
      int64_t at = t * wide + n * LANES, own = n * LANES;
      retreat(&chunk.history[at + wide], &chunk.history[at], &chunk.factor[at], &chunk.rate[own], step,
          &chunk.drive[t * LANES], y_grad, in.B.at(b, n, first + t), in.C.at(b, n, first + t), lanes, h_grad + own,
          &chunk.B[at], &chunk.C[at], own_grads + own, term_grad, step_grad);
    }
    for (int64_t lane = 0; lane < LANES; ++lane) {
      S delta_grad = (term_grad[lane] * u[lane] + step_grad[lane]) * chunk.slope[t * LANES + lane];
      skip_grad[lane] += y_grad[lane] * u[lane];
      bias_grad[lane] += delta_grad;
      u[lane] = term_grad[lane] * step[lane] + (in.D == nullptr ? S(0) : chunk.skip[lane] * y_grad[lane]);
      step[lane] = delta_grad;
    }
  }
  store(chunk.u.data(), grads.u + place, in.length, lanes, steps);
  store(chunk.step.data(), grads.delta + place, in.length, lanes, steps);
}

// One group of blocks of one sequence: chunk by chunk from the last, so that the shares of B and C are one chunk long.
template <typename T>
void group_grad(const Inputs<T>& in, const Gradients<T>& grads, int64_t b, int64_t group, int64_t groups) {
  using S = Statistic<T>;
  int64_t wide = in.state * LANES, chunks = (in.length + CHUNK - 1) / CHUNK, own = wide + 2 * LANES;
  int64_t first_block = in.blocks * group / groups, blocks = in.blocks * (group + 1) / groups - first_block;
  std::vector<S> starts(blocks * chunks * wide), h_grad(blocks * wide), own_grads(blocks * own);
  Chunk<S> chunk(wide);
  auto channel = [&](int64_t block) { return (first_block + block) * LANES; };
  auto lanes = [&](int64_t block) { return std::min(LANES, in.channels - channel(block)); };
  for (int64_t block = 0; block < blocks; ++block) {
    scan_block<T>(in, b, channel(block), lanes(block), nullptr, nullptr, starts.data() + block * chunks * wide);
    in.load_own(grads.last + b * in.channels * in.state, channel(block), lanes(block), in.state, h_grad.data() + block * wide);
  }
  for (int64_t index = chunks - 1; index >= 0; --index) {
    int64_t first = index * CHUNK, steps = std::min(CHUNK, in.length - first);
    std::fill(chunk.B.begin(), chunk.B.end(), S(0));
    std::fill(chunk.C.begin(), chunk.C.end(), S(0));
    for (int64_t block = 0; block < blocks; ++block) {
      const S* start = starts.data() + (block * chunks + index) * wide;
      std::copy(start, start + wide, chunk.history.begin());
      chunk_grad(in, grads, b, channel(block), lanes(block), first, steps, chunk, h_grad.data() + block * wide,
          own_grads.data() + block * own);
    }
    S* shared = grads.shared + (b * groups + group) * 2 * in.state * in.length + first;
    for (int64_t t = 0; t < steps; ++t) {
      for (int64_t n = 0; n < in.state; ++n) {
        const S *b_share = &chunk.B[t * wide + n * LANES], *c_share = &chunk.C[t * wide + n * LANES];
        S b_sum = 0, c_sum = 0;
        for (int64_t lane = 0; lane < LANES; ++lane) b_sum += b_share[lane], c_sum += c_share[lane];
        shared[n * in.length + t] = b_sum;
        shared[(in.state + n) * in.length + t] = c_sum;
      }
    }
  }
  for (int64_t block = 0; block < blocks; ++block) {
    const S *found = own_grads.data() + block * own, *initial = h_grad.data() + block * wide;
    for (int64_t lane = 0; lane < lanes(block); ++lane) {
      int64_t row = b * in.channels + channel(block) + lane;
      grads.D[row] = found[wide + lane];
      grads.bias[row] = found[wide + LANES + lane];
      for (int64_t n = 0; n < in.state; ++n) {
        grads.A[row * in.state + n] = found[n * LANES + lane];
        grads.initial[row * in.state + n] = initial[n * LANES + lane];
      }
    }
  }
}

// The sum over the sequences of a (batch, ...) tensor.
template <typename S>
Tensor sum_over_batch(const std::vector<S>& values, int64_t batch, const Tensor& like, const std::vector<int64_t>& shape) {
  Tensor total = allocate(like, shape);
  torch::stable::zero_(total);
  S* data = write<S>(total);
  int64_t count = total.numel();
  for (int64_t i = 0; i < batch * count; ++i) data[i % count] += values[i];
  return total;
}

// The gradients of those inputs that are there, in their order; those of A, D and delta_bias in the statistic's type.
std::vector<Tensor> selective_scan_grad(const Tensor& out_grad, const Tensor& last_state_grad, const Tensor& u,
    const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C, const Optional& D, const Optional& z,
    const Optional& delta_bias, const Optional& initial_state, bool delta_softplus) {
  std::vector<Tensor> results;
  for_element_type(u, "u", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    auto in = checked<T>(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus);
    check_shape(out_grad, {in.batch, in.channels, in.length}, "out_grad");
    STD_TORCH_CHECK(out_grad.scalar_type() == u.scalar_type(), "'out_grad' must have the dtype of 'u'");
    check_shape(last_state_grad, {in.batch, in.channels, in.state}, "last_state_grad");
    check_contiguous(last_state_grad, "last_state_grad");
    check_type(last_state_grad, statistic_type<T>, "last_state_grad");
    std::vector<int64_t> by_step = {in.batch, in.channels, in.length}, by_state = {in.batch, in.state, in.length};
    Tensor u_grad = allocate(u, by_step), delta_grad = allocate(u, by_step);
    Tensor z_grad = z ? allocate(u, by_step) : u_grad;
    Tensor B_grad = allocate(u, by_state), C_grad = allocate(u, by_state);
    Tensor initial_grad = allocate(A, {in.batch, in.channels, in.state});
    int64_t groups = std::min(GROUPS, in.blocks), rows = in.batch * in.channels, width = in.state * in.length;
    std::vector<S> A_shares(rows * in.state), D_shares(rows), bias_shares(rows), shared(in.batch * groups * 2 * width);
    Gradients<T> grads{Sequence<T>(out_grad), read<S>(last_state_grad), write<T>(u_grad), write<T>(delta_grad),
        write<T>(z_grad), A_shares.data(), D_shares.data(), bias_shares.data(), write<S>(initial_grad), shared.data()};
    for_rows(in.batch * groups, LANES * in.length * in.state, [&](int64_t first, int64_t end) {
      for (int64_t task = first; task < end; ++task) group_grad(in, grads, task / groups, task % groups, groups);
    });
    T *B_data = write<T>(B_grad), *C_data = write<T>(C_grad);
    for_rows(in.batch * in.state, in.length * groups, [&](int64_t first, int64_t end) {
      for (int64_t i = first * in.length; i < end * in.length; ++i) {
        const S* share = shared.data() + i / width * groups * 2 * width + i % width;
        S b_sum = 0, c_sum = 0;
        for (int64_t group = 0; group < groups; ++group, share += 2 * width) b_sum += share[0], c_sum += share[width];
        B_data[i] = narrow<T>(b_sum);
        C_data[i] = narrow<T>(c_sum);
      }
    });
    Tensor A_grad = sum_over_batch(A_shares, in.batch, A, {in.channels, in.state});
    results = {u_grad, delta_grad, A_grad, B_grad, C_grad};
    if (D) results.push_back(sum_over_batch(D_shares, in.batch, A, {in.channels}));
    if (z) results.push_back(z_grad);
    if (delta_bias) results.push_back(sum_over_batch(bias_shares, in.batch, A, {in.channels}));
    if (initial_state) results.push_back(initial_grad);
  });
  return results;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("selective_scan(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, "
        "Tensor? initial_state, bool delta_softplus) -> (Tensor, Tensor)");
  m.def("selective_scan_grad(Tensor out_grad, Tensor last_state_grad, Tensor u, Tensor delta, Tensor A, Tensor B, "
        "Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, Tensor? initial_state, bool delta_softplus) -> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("selective_scan", TORCH_BOX(&selective_scan));
  m.impl("selective_scan_grad", TORCH_BOX(&selective_scan_grad));
}
