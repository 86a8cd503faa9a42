// A device on the key PrivateUse1 whose memory is the host's: tensors, random numbers, streams and rules of its own.
//
// It finds code that takes one device for another, without an accelerator. It cannot show what is asynchronous, kernels
// of an accelerator, or what a process may not do after an accelerator was initialised.
#include "accelerator.h"
#include "fallback.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace second_device {

REGISTER_ALLOCATOR(c10::kPrivateUse1, &allocator);
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const char* name : {"_copy_from", "convolution_overrideable", "convolution_backward_overrideable"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Without these the target is copied first, and what is written to a lazily conjugated or negated tensor is lost.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

// An operator without a policy would be refused under autocast.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // the macro needs the name
  using at::autocast::CastPolicy;
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(sum, fp32)
}

// Not operators: modes such as FakeTensorMode would intercept them.
PYBIND11_MODULE(second_device, module) {
  module.def("calls", [](const std::string& name) { return counts.of(name); });
  module.def("default_generator", &default_generator);
  py::class_<HostCall>(module, "HostCall")
      .def(py::init<>())
      .def("to_host", [](HostCall& call, const Tensor& tensor) { return call.to_host(tensor, true); })
      .def("from_host", [](HostCall& call, const Tensor& result) { return call.from_host(result); })
      .def("write_back", &HostCall::write_back);
  module.def("install", [] {
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
  });
}

}  // namespace second_device
