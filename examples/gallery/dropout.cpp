// Dropout by a counter-based generator: see dropout.py.
#include <custom_autograd/kernel.h>
#include <custom_autograd/philox.h>

using namespace custom_autograd;

constexpr int LANES = 128, GROUP = 4 * LANES;

// Element i of group g, counted from `offset` elements before x, is kept where word i / LANES of counter g * LANES + i % LANES is at least p * 2^32.
Tensor dropout(const Tensor& x, double p, const Tensor& seed, int64_t offset) {
  check_contiguous(x, "x");
  STD_TORCH_CHECK(p >= 0 && p <= 1, "'p' must be a probability in [0, 1], not ", p);
  STD_TORCH_CHECK(seed.is_cpu() && seed.numel() == 1 && seed.scalar_type() == ScalarType::Long,
      "'seed' must be a CPU tensor of one int64");
  STD_TORCH_CHECK(offset >= 0, "'offset' must be the place of an element, not ", offset);
  Tensor out = allocate_like(x);
  int64_t count = x.numel(), first_group = offset / GROUP, groups = (offset % GROUP + count + GROUP - 1) / GROUP;
  uint64_t key = static_cast<uint64_t>(*read<int64_t>(seed));
  double threshold = std::nearbyint(p * 0x1.0p32);
  if (threshold >= 0x1.0p32) return torch::stable::zero_(out);  // no word is that large: none is kept
  uint32_t least = static_cast<uint32_t>(threshold);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    const T* in = read<T>(x);
    T* result = write<T>(out);
    S scale = static_cast<S>(1 / (1 - p));
    for_rows(groups, GROUP, [=](int64_t first, int64_t last) {
      alignas(64) uint32_t word[GROUP];
      for (int64_t group = first; group < last; ++group) {
        philox<LANES>(key, static_cast<uint64_t>(first_group + group) * LANES, word);
        int64_t start = group * GROUP - offset % GROUP, length = std::min<int64_t>(GROUP, count - start);
#pragma omp simd
        for (int64_t i = std::max<int64_t>(0, -start); i < length; ++i) {
          S kept = widen(in[start + i]) * scale;
          result[start + i] = narrow<T>(word[i] >= least ? kept : S(0));
        }
      }
    });
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("dropout(Tensor x, float p, Tensor seed, int offset) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("dropout", TORCH_BOX(&dropout));
}
