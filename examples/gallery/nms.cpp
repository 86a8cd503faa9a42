// Which of boxes, best first, no better one that is kept overlaps too much: see nms.py.
#include <custom_autograd/kernel.h>

#include <vector>

using namespace custom_autograd;

// Boxes as five arrays, so that one is compared with many at a time.
template <typename S>
class Boxes {
 public:
  explicit Boxes(int64_t capacity) {
    for (auto* column : {&left_, &top_, &right_, &bottom_, &area_}) column->reserve(capacity);
  }

  int64_t size() const { return static_cast<int64_t>(area_.size()); }

  void add(const S* box) {
    left_.push_back(box[0]);
    top_.push_back(box[1]);
    right_.push_back(box[2]);
    bottom_.push_back(box[3]);
    area_.push_back((box[2] - box[0]) * (box[3] - box[1]));
  }

  // Whether one of the boxes from `first` on overlaps a box by more than the threshold. A NaN is no overlap.
  bool overlap(int64_t first, const S* box, S threshold) const {
    constexpr int64_t block = 64;  // looks up after each: most boxes that overlap one overlap an early one
    const S *left = left_.data(), *top = top_.data(), *right = right_.data(), *bottom = bottom_.data();
    const S* areas = area_.data();
    S area = (box[2] - box[0]) * (box[3] - box[1]), box_left = box[0], box_top = box[1];
    S box_right = box[2], box_bottom = box[3];
    for (int64_t start = first; start < size(); start += block) {
      int64_t end = std::min(size(), start + block);
      int32_t found = 0;
#pragma omp simd reduction(| : found)
      for (int64_t i = start; i < end; ++i) {
        S width = (right[i] < box_right ? right[i] : box_right) - (left[i] > box_left ? left[i] : box_left);
        S height = (bottom[i] < box_bottom ? bottom[i] : box_bottom) - (top[i] > box_top ? top[i] : box_top);
        S shared = (width > 0 ? width : S(0)) * (height > 0 ? height : S(0));
        found |= shared / (areas[i] + area - shared) > threshold;
      }
      if (found) return true;
    }
    return false;
  }

 private:
  std::vector<S> left_, top_, right_, bottom_, area_;
};

template <typename S>
static void keep(const S* boxes, int64_t count, S threshold, bool* kept) {
  // A tile is compared with what was kept before it in parallel, and then within itself one after another.
  constexpr int64_t tile = 256;
  Boxes<S> chosen(count);
  for (int64_t start = 0; start < count; start += tile) {
    int64_t end = std::min(count, start + tile), before = chosen.size();
    for_rows(end - start, before, [=, &chosen](int64_t first, int64_t last) {
      for (int64_t i = start + first; i < start + last; ++i) kept[i] = !chosen.overlap(0, boxes + 4 * i, threshold);
    });
    for (int64_t i = start; i < end; ++i) {
      kept[i] = kept[i] && !chosen.overlap(before, boxes + 4 * i, threshold);
      if (kept[i]) chosen.add(boxes + 4 * i);
    }
  }
}

// boxes: (n, 4), best first. Returns a bool per box.
Tensor nms_kept(const Tensor& boxes, double threshold) {
  check_contiguous(boxes, "boxes");
  STD_TORCH_CHECK(boxes.dim() == 2 && boxes.size(1) == 4, "'boxes' must be (n, 4)");
  Tensor kept = allocate(boxes, {boxes.size(0)}, ScalarType::Bool);
  switch (boxes.scalar_type()) {
    case ScalarType::Float: keep(read<float>(boxes), boxes.size(0), float(threshold), write<bool>(kept)); break;
    case ScalarType::Double: keep(read<double>(boxes), boxes.size(0), threshold, write<bool>(kept)); break;
    default: STD_TORCH_CHECK(false, "'boxes' must be float64 or float32");
  }
  return kept;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("nms_kept(Tensor boxes, float threshold) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("nms_kept", TORCH_BOX(&nms_kept)); }
