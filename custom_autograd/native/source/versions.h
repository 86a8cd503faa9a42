// What differs between the versions of PyTorch that are supported: how the graph owns its nodes, who hears of them, who counts
// tensors, and which errors there are.
#pragma once
#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#if __has_include(<ATen/NodeCreationHooks.h>)  // PyTorch 2.14 and newer
#include <ATen/NodeCreationHooks.h>
#define CUSTOM_AUTOGRAD_TELLS_OF_NODES
#endif

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
using NodePointer = c10::intrusive_ptr<torch::autograd::Node>;
using WeakNode = c10::weak_intrusive_ptr<torch::autograd::Node>;

template <class T, class... Args>
c10::intrusive_ptr<T> make_node(Args&&... args) {
  return c10::make_intrusive<T>(std::forward<Args>(args)...);
}
#else
using NodePointer = std::shared_ptr<torch::autograd::Node>;
using WeakNode = std::weak_ptr<torch::autograd::Node>;

template <class T, class... Args>
std::shared_ptr<T> make_node(Args&&... args) {
  return std::shared_ptr<T>(new T(std::forward<Args>(args)...), torch::autograd::deleteNode);
}
#endif

// Tells those who asked for it that the graph has a new node.
template <class Pointer>
void tell_of_new_node(const Pointer& node) {
#ifdef CUSTOM_AUTOGRAD_TELLS_OF_NODES
  if (!at::impl::NodeCreationHooks::empty()) torch::autograd::fire_node_creation_hooks(node);
#endif
}

// What backward passes exclude besides autograd: the key of named tensors, which PyTorch 2.13 has removed.
inline c10::DispatchKeySet excluded_in_backward() {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  return c10::DispatchKeySet(c10::DispatchKey::Named);
#else
  return {};
#endif
}

// A node is asked to give up what it refers to before it is destroyed.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
#define CUSTOM_AUTOGRAD_RELEASES_NODES
#endif

// A call through torch.ops has pybind11's classes of errors for the standard exceptions.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
#define CUSTOM_AUTOGRAD_HAS_STANDARD_ERRORS
#endif

// Up to here a tensor and its object in Python are known to count as NOTE [tensors are held during a call] says.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR <= 15
#define CUSTOM_AUTOGRAD_COUNTS_TENSORS
#endif
