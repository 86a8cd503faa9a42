// Fake quantization and its straight-through gradients: see fake_quantize.py.
#include <custom_autograd/kernel.h>

#include <tuple>

using namespace custom_autograd;

constexpr int64_t STRETCH = 16384;  // elements whose share of the scale's gradient is one sum

static void check_parameters(const Tensor& x, const Tensor& scale, const Tensor& low, const Tensor& high, int64_t inner) {
  check_contiguous(x, "x");
  check_contiguous(scale, "scale");
  check_contiguous(low, "low");
  check_contiguous(high, "high");
  STD_TORCH_CHECK(low.numel() == scale.numel() && high.numel() == scale.numel(),
      "'low' and 'high' must have one element per element of 'scale'");
  int64_t count = x.numel(), channels = scale.numel();
  STD_TORCH_CHECK(count == 0 || (inner > 0 && channels > 0 && count % inner == 0 && count / inner % channels == 0),
      "'x' has ", count, " elements, which are not stretches of ", inner, " for each of ", channels, " channels");
}

// The parameters of channel c, in the statistic's type.
template <typename S>
struct Parameters {
  const S *scale, *low, *high;

  template <typename T>
  static Parameters of(const Tensor& scale, const Tensor& low, const Tensor& high) {
    check_type(scale, statistic_type<T>, "scale");
    check_type(low, statistic_type<T>, "low");
    check_type(high, statistic_type<T>, "high");
    return {read<S>(scale), read<S>(low), read<S>(high)};
  }

  S clamp(S steps, int64_t c) const {
    S least = low[c], greatest = high[c];  // loaded both ways, so that loops vectorise
    return steps < least ? least : steps > greatest ? greatest : steps;
  }
};

// One stretch, whose element i belongs to channel c + STRIDE * i.
template <int STRIDE, typename T, typename S>
void quantize(Parameters<S> of, int64_t c, const T* __restrict x, int64_t count, T* __restrict out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    int64_t own = c + STRIDE * i;
    out[i] = narrow<T>(std::nearbyint(of.clamp(widen(x[i]) / of.scale[own], own)) * of.scale[own]);
  }
}

// The gradient of one element of x, and its share of the gradient of the scale.
template <typename T, typename S>
inline S gradients(const Parameters<S>& of, int64_t c, T x, T out_grad, T& x_grad) {
  S steps = widen(x) / of.scale[c], clamped = of.clamp(steps, c);
  S rounded = std::nearbyint(clamped);
  x_grad = clamped == steps ? out_grad : narrow<T>(S(0));
  return widen(out_grad) * (clamped == steps ? rounded - steps : rounded);
}

// The same for one stretch of one channel, summed.
template <typename T, typename S>
S gradients_of_stretch(const Parameters<S>& of, int64_t c, const T* __restrict x, const T* __restrict out_grad, int64_t count,
    T* __restrict x_grad) {
  S scale = of.scale[c], low = of.low[c], high = of.high[c];
  Parameters<S> own{&scale, &low, &high};
  S sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += gradients(own, 0, x[i], out_grad[i], x_grad[i]);
  return sum;
}

Tensor fake_quantize(const Tensor& x, const Tensor& scale, const Tensor& low, const Tensor& high, int64_t inner) {
  check_parameters(x, scale, low, high, inner);
  Tensor out = allocate_like(x);
  int64_t count = x.numel(), channels = scale.numel();
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    auto of = Parameters<Statistic<T>>::template of<T>(scale, low, high);
    const T* in = read<T>(x);
    T* result = write<T>(out);
    for_rows(count, 1, [=](int64_t first, int64_t last) {
      while (first < last) {
        int64_t length = inner == 1 ? channels - first % channels : inner - first % inner;
        length = std::min(length, last - first);
        int64_t c = first / inner % channels;
        if (inner == 1) {
          quantize<1>(of, c, in + first, length, result + first);
        } else {
          quantize<0>(of, c, in + first, length, result + first);
        }
        first += length;
      }
    });
  });
  return out;
}

// Returns x_grad, and the shares of the gradient of scale: (..., channels, ...), to be summed over the outer dimensions.
std::tuple<Tensor, Tensor> fake_quantize_grad(const Tensor& out_grad, const Tensor& x, const Tensor& scale,
    const Tensor& low, const Tensor& high, int64_t inner) {
  check_parameters(x, scale, low, high, inner);
  check_contiguous(out_grad, "out_grad");
  STD_TORCH_CHECK(out_grad.numel() == x.numel() && out_grad.scalar_type() == x.scalar_type(),
      "'out_grad' must have the shape and dtype of 'x'");
  Tensor x_grad = allocate_like(x), shares;
  int64_t count = x.numel(), channels = scale.numel(), rows = count == 0 ? 0 : count / inner;
  // Stretches of one channel each; or, where neighbours belong to different channels, some rows of all channels.
  bool mixed = inner == 1 && channels > 1;
  int64_t outer = mixed ? std::max<int64_t>(1, STRETCH / channels) : 1;
  int64_t parts = mixed || count == 0 ? 1 : (inner + STRETCH - 1) / STRETCH;
  int64_t tasks = mixed ? (rows / channels + outer - 1) / outer : rows * parts;
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    auto of = Parameters<S>::template of<T>(scale, low, high);
    int64_t groups = mixed ? tasks : channels == 0 ? 0 : rows / channels;
    shares = allocate(scale, {groups, channels, parts});
    const T *in = read<T>(x), *grad = read<T>(out_grad);
    T* result = write<T>(x_grad);
    S* share = write<S>(shares);
    for_rows(tasks, STRETCH, [=](int64_t first, int64_t last) {
      for (int64_t task = first; task < last; ++task) {
        if (mixed) {
          S* sums = share + task * channels;
          std::fill(sums, sums + channels, S(0));
          for (int64_t i = task * outer * channels; i < std::min(count, (task + 1) * outer * channels); i += channels) {
#pragma omp simd
            for (int64_t c = 0; c < channels; ++c) sums[c] += gradients(of, c, in[i + c], grad[i + c], result[i + c]);
          }
        } else {
          int64_t row = task / parts, c = row % channels, start = row * inner + task % parts * STRETCH;
          int64_t end = std::min((row + 1) * inner, start + STRETCH);
          share[task] = gradients_of_stretch(of, c, in + start, grad + start, end - start, result + start);
        }
      }
    });
  });
  return {x_grad, shares};
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("fake_quantize(Tensor x, Tensor scale, Tensor low, Tensor high, int inner) -> Tensor");
  m.def("fake_quantize_grad(Tensor out_grad, Tensor x, Tensor scale, Tensor low, Tensor high, int inner) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("fake_quantize", TORCH_BOX(&fake_quantize));
  m.impl("fake_quantize_grad", TORCH_BOX(&fake_quantize_grad));
}
