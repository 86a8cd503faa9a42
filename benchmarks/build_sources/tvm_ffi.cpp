// Three times a float32 tensor, for tvm-ffi: it writes into what Python has allocated, as its documentation does.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

void times_into(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  DLDataType expected{kDLFloat, 32, 1};
  TVM_FFI_ICHECK(x.dtype() == expected && out.dtype() == expected) << "float32 is expected";
  TVM_FFI_ICHECK(x.IsContiguous() && out.IsContiguous() && x.numel() == out.numel()) << "equal sizes are expected";
  const float* in = static_cast<const float*>(x.data_ptr());
  float* result = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) result[i] = 3 * in[i];
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(times_into, times_into);
