// The first call of a kind, which is checked in full.
#pragma once
#include "kinds.h"

namespace {

// What the first call of a kind is checked for as well: that no output shares memory with a tensor of the call, and that
// nothing was written to but what may be. By address, since NumPy shares memory too; writes by the counts of PyTorch.
struct Trial {
  using Span = std::pair<const char*, const char*>;
  const Call* op;
  const Values& values;
  c10::SmallVector<Span, 8> written;
  c10::SmallVector<int64_t, 8> versions;  // of tensors that must not be written to; -1 of others

  Trial(const Call* its, const Values& its_values) : op(its), values(its_values) {
    for_tensors([&](size_t i, const Tensor& tensor) {
      if (op->written >> i & 1) written.push_back(span_of(tensor));
    });
    for_tensors([&](size_t i, const Tensor& tensor) { versions.push_back(is_fixed(i, tensor) ? version_of(tensor) : -1); });
  }

  template <class Work>
  void for_tensors(Work work) const {
    holds_for_tensors(op, values, [&](size_t i, PyObject* tensor) {
      work(i, THPVariable_Unpack(tensor));
      return true;
    });
  }

  static int64_t version_of(const Tensor& tensor) {
    return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor.unsafeGetTensorImpl()->version_counter().current_version());
  }

  // The memory of a tensor; empty if it has none that could be compared.
  static Span span_of(const Tensor& tensor) {
    if (tensor.layout() != at::kStrided || tensor.is_meta() || !tensor.has_storage()) return {nullptr, nullptr};
    try {
      const auto* start = static_cast<const char*>(tensor.storage().data());
      size_t size = start ? tensor.storage().nbytes() : 0;
      return size ? Span(start, start + size) : Span(nullptr, nullptr);
    } catch (const c10::Error&) {
      return {nullptr, nullptr};
    }
  }

  static bool overlap(const Span& one, const Span& other) { return one.first < other.second && other.first < one.second; }

  bool is_fixed(size_t i, const Tensor& tensor) const {
    Span its = span_of(tensor);
    return !(op->written >> i & 1) && std::none_of(written.begin(), written.end(), [&](const Span& one) { return overlap(one, its); });
  }

  // A kernel may have given a tensor other memory: it is that which counts.
  bool shares_memory(PyObject* result) const {
    c10::SmallVector<Span, 8> seen;
    for_tensors([&](size_t, const Tensor& tensor) { seen.push_back(span_of(tensor)); });
    for (int i = 0; i < op->outputs; ++i) {
      Span its = span_of(THPVariable_Unpack(op->outputs > 1 ? PyTuple_GET_ITEM(result, i) : result));
      if (std::any_of(seen.begin(), seen.end(), [&](const Span& one) { return overlap(one, its); })) return true;
      seen.push_back(its);
    }
    return false;
  }

  void refuse_writes(PyObject* function) const {
    size_t position = 0;
    for_tensors([&](size_t i, const Tensor& tensor) {
      int64_t before = versions[position++];
      if (before < 0 || before == version_of(tensor)) return;
      Reference index(checked(PyLong_FromSize_t(i)));
      Reference done(checked(PyObject_CallFunctionObjArgs(op->refuse_write, index.get(), function, nullptr)));
    });
  }
};

}  // namespace
