// The luma of an image: (3, height, width) to (height, width).
#include <custom_autograd/kernel.h>

using namespace custom_autograd;

Tensor rgb_to_gray(const Tensor& image) {
  STD_TORCH_CHECK(image.dim() == 3 && image.size(0) == 3, "'image' must have the shape (3, height, width)");
  int64_t pixels = image.size(1) * image.size(2);
  Tensor out = allocate(image, {image.size(1), image.size(2)});
  for_element_type(image, "image", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    const T* in = read<T>(image);
    T* result = write<T>(out);
    for (int64_t i = 0; i < pixels; ++i) {
      S red = widen(in[i]), green = widen(in[pixels + i]), blue = widen(in[2 * pixels + i]);
      result[i] = narrow<T>(S(0.299) * red + S(0.587) * green + S(0.114) * blue);
    }
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("rgb_to_gray(Tensor image) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("rgb_to_gray", TORCH_BOX(&rgb_to_gray)); }
