// Root-mean-square normalisation over the last dimension on a GPU, one block per row: see rms_norm.py.
#include <custom_autograd/cuda.h>

#include <tuple>
#include <vector>

using namespace custom_autograd;

constexpr int LARGEST_BLOCK = 512;

// The row is read twice: the second time it comes from the L1 cache, which holds 64k elements of bfloat16 or more.
template <typename T, typename S, int width>
__global__ void __launch_bounds__(LARGEST_BLOCK)
    rms_norm_row(const T* x, const S* weight, T* out, S* rstd, int64_t features, S eps) {
  using Values = Vector<T, width>;
  int64_t row = blockIdx.x;
  int64_t vectors = features / width;
  const Values* in = reinterpret_cast<const Values*>(x + row * features);
  Values* result = reinterpret_cast<Values*>(out + row * features);
  S sum = 0;
  for (int64_t place = threadIdx.x; place < vectors; place += blockDim.x) {
    Values loaded = in[place];
#pragma unroll
    for (int i = 0; i < width; ++i) sum += static_cast<S>(loaded.values[i]) * static_cast<S>(loaded.values[i]);
  }
  S scale = S(1) / sqrt(block_sum(sum) / static_cast<S>(features) + eps);
  if (threadIdx.x == 0) rstd[row] = scale;
  for (int64_t place = threadIdx.x; place < vectors; place += blockDim.x) {
    Values loaded = in[place];
#pragma unroll
    for (int i = 0; i < width; ++i) {
      loaded.values[i] = static_cast<T>(static_cast<S>(loaded.values[i]) * scale * weight[place * width + i]);
    }
    result[place] = loaded;
  }
}

template <typename T, typename S, int width>
void launch(const Tensor& x, const Tensor& weight, const Tensor& out, const Tensor& rstd, double eps) {
  int64_t features = x.size(-1);
  int64_t vectors = (features / width + WARP - 1) / WARP * WARP;
  int threads = static_cast<int>(std::clamp<int64_t>(vectors, WARP, LARGEST_BLOCK));
  rms_norm_row<T, S, width><<<grid(row_count(x)), threads, 0, current_stream(x)>>>(
      read<T>(x), read<S>(weight), write<T>(out), write<S>(rstd), features, static_cast<S>(eps));
  check_launch("rms_norm");
}

// x: (..., features); weight: (features,), in the statistic's type. Returns out like x and rstd: (..., 1).
std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_cuda(x, "x");
  STD_TORCH_CHECK(x.dim() > 0 && weight.numel() == x.size(-1), "'weight' must have one element per feature of 'x'");
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = 1;
  Tensor out = torch::stable::empty_like(x);
  Tensor rstd;
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    constexpr int width = elements_per_vector<T>;
    check_cuda_like(weight, "weight", x, statistic_type<T>);
    rstd = torch::stable::new_empty(x, shape, statistic_type<T>);
    if (row_count(x) == 0) return;  // a grid of no blocks is an error
    bool is_vectorised = x.size(-1) % width == 0 && is_aligned(read<T>(x)) && is_aligned(read<T>(out));
    is_vectorised ? launch<T, S, width>(x, weight, out, rstd, eps) : launch<T, S, 1>(x, weight, out, rstd, eps);
  });
  return {out, rstd};
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CUDA, m) { m.impl("rms_norm", TORCH_BOX(&rms_norm)); }
