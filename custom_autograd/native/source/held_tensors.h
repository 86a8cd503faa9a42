// References to the tensors of a call, for as long as it runs.
#pragma once
#include "versions.h"

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>

// NOTE [tensors are held during a call]
// A tensor and its object in Python keep each other alive: the object has one reference to the tensor, and while there are
// others, the tensor has one to the object. So the first reference of C++ takes one to the object and the last one drops
// it, and both ask for the GIL. Operations copy and drop references while it is released. While a call holds its tensors,
// theirs are neither the first nor the last. Operations that record copy tensors, as do kernels in C++ and many others.
//
// To hold a tensor through at::Tensor asks for the GIL itself, twice, in 45 ns: 3 % of a call each. This has the GIL, and
// the object cannot go meanwhile: so it counts by hand, takes no second reference to the object when it is the first, and
// makes up for that if others have taken some when it drops its own.
#ifdef CUSTOM_AUTOGRAD_COUNTS_TENSORS
struct CountOfTensor;

namespace c10 {
template <>
struct ExclusivelyOwnedTensorTraits<CountOfTensor> {  // a friend of what is counted
  static std::atomic<uint64_t>& of(const TensorImpl* tensor) { return tensor->combined_refcount_; }
};
}  // namespace c10

class HeldTensor {
  using Counts = c10::ExclusivelyOwnedTensorTraits<CountOfTensor>;
  PyObject* object;
  c10::TensorImpl* tensor;
  bool is_first;

 public:
  explicit HeldTensor(PyObject* its) : object(Py_NewRef(its)), tensor(THPVariable_Unpack(its).unsafeGetTensorImpl()) {
    is_first = c10::detail::refcount(Counts::of(tensor).fetch_add(1, std::memory_order_relaxed)) == 1;
  }
  HeldTensor(HeldTensor&& other) noexcept
      : object(std::exchange(other.object, nullptr)), tensor(other.tensor), is_first(other.is_first) {}
  HeldTensor& operator=(HeldTensor&&) = delete;
  ~HeldTensor() {
    if (!object) return;
    bool is_last = c10::detail::refcount(Counts::of(tensor).fetch_sub(1, std::memory_order_acq_rel)) == 2;
    if (is_first && !is_last) Py_INCREF(object);
    if (!is_first && is_last) Py_DECREF(object);
    Py_DECREF(object);
  }
};
#else
class HeldTensor {
  at::Tensor tensor;

 public:
  explicit HeldTensor(PyObject* its) : tensor(THPVariable_Unpack(its)) {}
};
#endif

using HeldTensors = c10::SmallVector<HeldTensor, 8>;
