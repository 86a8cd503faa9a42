// Where the gradient of an input goes.
#pragma once
#include "quiet.h"
#include "versions.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <mutex>
#include <typeinfo>

// NOTE [the lock of a leaf]
// The node that accumulates the gradient of a leaf is made under a lock of the tensor. A thread without the GIL may have
// to wait for the GIL there, as the first in C++ to refer to the tensor. So one with the GIL must not wait for the lock:
// `Function.apply` does, and hangs where other threads record operations on the same leaf (torch 2.11 to 2.15). Here, one
// that does not get the lock at once lets PyTorch wait for it, without the GIL. The tensor is held, so that what
// PyTorch does under the lock asks for nothing.
inline torch::autograd::Edge edge_of_leaf(const at::Tensor& tensor, const torch::autograd::AutogradMeta& meta) {
  std::unique_lock<std::mutex> lock(meta.mutex_, std::try_to_lock);
  if (!lock) {
    pybind11::gil_scoped_release no_gil;
    return torch::autograd::impl::gradient_edge(tensor);
  }
  NodePointer node = meta.grad_accumulator_.lock();
  if (node) return {std::move(node), 0};
  node = make_node<torch::autograd::AccumulateGrad>(tensor);
  const_cast<torch::autograd::AutogradMeta&>(meta).grad_accumulator_ = node;
  lock.unlock();
  tell_of_new_node(node);
  return {std::move(node), 0};
}

// With the GIL held, of a tensor that requires a gradient and is held.
inline torch::autograd::Edge edge_of(const at::Tensor& tensor) {
  const auto* meta = meta_of(tensor);
  if (meta && !meta->grad_fn_ && !meta->is_view_) return edge_of_leaf(tensor, *meta);
  return torch::autograd::impl::gradient_edge(tensor);
}

// Whether a node accumulates the gradient of a leaf.
inline bool is_leaf(const torch::autograd::Node& node) { return typeid(node) == typeid(torch::autograd::AccumulateGrad); }
