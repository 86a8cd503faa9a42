// Calls an op without the dispatcher and without a Python frame of our own, where that is known to be the same.
//
// Which calls those are is proven in Python (execution/proofs.py): a `Kind` here is one such proof, recognised by the
// dispatch keys, dtypes and devices of the tensors and by the modes of this thread. Every other call goes to the
// `__call__` of the op's class, as if this file were not there.
#include "node_type.h"
#include "overload.h"
#include "owners.h"

#include <custom_autograd/trial.h>

#include <structmember.h>

#include <algorithm>
namespace {

// ----------------------------------------------------------------------------------------------- the object in Python

// The recipe that is made from an object in Python: that of another kind, or a new one.
std::shared_ptr<const Recipe> recipe_of(const Call* op, PyObject* source) {
  if (source == Py_None) return nullptr;
  for (const Kind* kind : *op->kinds)
    if (kind->recipe && kind->recipe->source.object == source) return kind->recipe;
  return std::make_shared<Recipe>(source, op->signature);
}

std::vector<EqualSize> sizes_of(PyObject* rows) {
  std::vector<EqualSize> found(PyTuple_GET_SIZE(rows));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); ++i) {
    EqualSize& one = found[i];
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "iiiiiL", &one.argument, &one.element, &one.dimension, &one.other_argument,
                          &one.other_element, &one.other))
      throw python_error();
  }
  return found;
}

// add(arguments, function, record, is_checked, recipe, looking, sizes): the kind of these arguments, under the present modes, on
// trial if it is checked; what looks runs in its place in the first call, and where sizes differ
PyObject* add(PyObject* object, PyObject* args) {
  HANDLE_TH_ERRORS
  auto* op = reinterpret_cast<Call*>(object);
  PyObject *given, *function, *record, *recipe, *looking, *sizes;
  int is_checked;
  if (!PyArg_ParseTuple(args, "O!OOpOOO!", &PyTuple_Type, &given, &function, &record, &is_checked, &recipe, &looking,
                        &PyTuple_Type, &sizes))
    return nullptr;
  TORCH_CHECK(PyTuple_GET_SIZE(given) == static_cast<Py_ssize_t>(op->arguments->size()), "another number of arguments");
  auto kind = std::make_unique<Kind>();
  auto modes = c10::impl::tls_local_dispatch_key_set();
  kind->included = modes.included_.raw_repr();
  kind->excluded = modes.excluded_.raw_repr();
  kind->counts.fill(0);
  std::vector<const at::TensorImpl*> seen;
  for (size_t i = 0; i < op->arguments->size(); ++i) {
    const Argument& argument = (*op->arguments)[i];
    if (!holds_tensors(argument)) continue;
    PyObject* value = PyTuple_GET_ITEM(given, i);
    kind->counts[i] = static_cast<int16_t>(count_of(argument, value));
    for (int element = 0; element < kind->counts[i]; ++element) {
      const Tensor& tensor = THPVariable_Unpack(tensor_of(argument, value, element));
      kind->requires_grad |= uint64_t(tensor.requires_grad()) << i;
      const at::TensorImpl* its = tensor.unsafeGetTensorImpl();
      int same_as = find_same(seen.data(), static_cast<int>(seen.size()), its);
      seen.push_back(its);
      kind->tensors.push_back({tensor.key_set().raw_repr(), tensor.dim(), same_as, tensor.scalar_type(), tensor.device(),
                               tensor.requires_grad()});
    }
  }
  kind->is_checked = is_checked;
  kind->is_on_trial = is_checked;
  kind->function = Held(function);
  kind->record = Held(record);
  kind->looking = Held(looking);
  kind->sizes = sizes_of(sizes);
  kind->recipe = recipe_of(op, recipe);
  insert(op, kind.release());
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

void forget_kinds(Call* op) {
  ++op->forgotten;
  std::vector<const Kind*> gone;
  gone.swap(*op->kinds);
  for (const Kind* kind : gone) KindPointer::let_go(kind);
}

PyObject* forget(PyObject* object, PyObject*) {
  forget_kinds(reinterpret_cast<Call*>(object));
  reinterpret_cast<Call*>(object)->misses = 0;
  Py_RETURN_NONE;
}

// A kind was proven that is not known here yet: the next call asks for it.
PyObject* expect(PyObject* object, PyObject*) {
  reinterpret_cast<Call*>(object)->misses = 0;
  Py_RETURN_NONE;
}

PyObject* count_kinds(PyObject* object, PyObject*) {
  return PyLong_FromSize_t(reinterpret_cast<Call*>(object)->kinds->size());
}

PyObject* created(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  auto* op = reinterpret_cast<Call*>(object);
  op->arguments = new std::vector<Argument>();
  op->kinds = new std::vector<const Kind*>();
  return object;
}

// Call(signature, (learn, read, instead, unavailable, note, compiling, named_tuple, keywords, dispatched, refuse_write,
// names of outputs))
// signature: ((name, rule, is_optional, is_keyword_only, is_differentiable, type or choices, defaults), ...), outputs,
// visible, written, differentiable
int initialise(PyObject* object, PyObject* args, PyObject*) {
  auto* op = reinterpret_cast<Call*>(object);
  PyObject *rows, *objects;
  unsigned long long visible, written, differentiable;
  int outputs;
  if (op->held) {
    PyErr_SetString(PyExc_TypeError, "a call is made once");
    return -1;
  }
  if (!PyArg_ParseTuple(args, "O!iKKKO!", &PyTuple_Type, &rows, &outputs, &visible, &written, &differentiable,
                        &PyTuple_Type, &objects))
    return -1;
  if (PyTuple_GET_SIZE(rows) > MOST || outputs > MOST || outputs < 0 || PyTuple_GET_SIZE(objects) != 11) {
    PyErr_SetString(PyExc_ValueError, "too many arguments or outputs");
    return -1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); ++i) {
    PyObject *name, *type, *defaults;
    const char* rule;
    int is_optional, is_keyword_only, is_differentiable;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "UspppOO!", &name, &rule, &is_optional, &is_keyword_only,
                          &is_differentiable, &type, &PyTuple_Type, &defaults))
      return -1;
    Argument argument;
    argument.name = name;
    argument.kind = *rule == 'T' ? Value::tensor
        : *rule == 'L'           ? Value::list
        : *rule == 'i'           ? Value::integer
        : *rule == 's'           ? Value::text
                                 : Value::exact;
    op->signature.lists |= uint64_t(argument.kind == Value::list) << i;
    op->signature.differentiable_inputs |= uint64_t(is_differentiable) << i;
    argument.is_optional = is_optional;
    argument.type = PyType_Check(type) ? reinterpret_cast<PyTypeObject*>(type) : nullptr;
    argument.choices = PyTuple_Check(type) ? type : nullptr;
    argument.fallback = PyTuple_GET_SIZE(defaults) ? PyTuple_GET_ITEM(defaults, 0) : nullptr;
    op->arguments->push_back(argument);
    op->positional += !is_keyword_only;
  }
  op->outputs = outputs;
  op->visible = visible;
  op->written = written;
  op->signature.inputs = static_cast<int>(PyTuple_GET_SIZE(rows));
  op->signature.differentiable_outputs = differentiable;
  op->held = PyTuple_Pack(2, rows, objects);
  if (!op->held) return -1;
  PyObject** members[] = {&op->learn, &op->read, &op->instead, &op->unavailable, &op->note, &op->compiling, &op->named_tuple,
                          &op->keywords, &op->dispatched, &op->refuse_write, &op->names};
  for (int i = 0; i < 11; ++i) *members[i] = PyTuple_GET_ITEM(objects, i);
  if (op->keywords == Py_None) op->keywords = nullptr;
  if (!PyTuple_CheckExact(op->names) || PyTuple_GET_SIZE(op->names) != outputs) {
    PyErr_SetString(PyExc_ValueError, "there is not one name for each output");
    return -1;
  }
  if (!PyCFunction_Check(op->compiling) || !(PyCFunction_GET_FLAGS(op->compiling) & METH_NOARGS)) {
    PyErr_SetString(PyExc_TypeError, "the question for a compiler is not a C function without arguments");
    return -1;
  }
  return 0;
}

// What a kind holds is seen by Python's collector only where no call and no node in progress holds it as well.
int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* op = reinterpret_cast<Call*>(object);
  Py_VISIT(op->held);
  if (!op->kinds) return 0;
  for (const Kind* kind : *op->kinds) {
    if (kind->holders > 1) continue;
    Py_VISIT(kind->function.object);
    Py_VISIT(kind->record.object);
    Py_VISIT(kind->looking.object);
    auto has_same = [&](const Kind* other) { return other->recipe == kind->recipe; };
    bool is_first = std::find_if(op->kinds->begin(), op->kinds->end(), has_same) == std::find(op->kinds->begin(), op->kinds->end(), kind);
    auto holders = std::count_if(op->kinds->begin(), op->kinds->end(), has_same);
    if (kind->recipe && is_first && kind->recipe.use_count() == holders) {
      int status = kind->recipe->traverse(visit, arg);
      if (status) return status;
    }
  }
  return 0;
}

int clear(PyObject* object) {
  auto* op = reinterpret_cast<Call*>(object);
  if (op->kinds) forget_kinds(op);
  return 0;  // `held` goes with the call: the class may still be called
}

void destroyed(PyObject* object) {
  PyObject_GC_UnTrack(object);
  auto* op = reinterpret_cast<Call*>(object);
  clear(object);
  delete op->kinds;
  delete op->arguments;
  Py_XDECREF(op->held);
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef methods[] = {
    {"add", add, METH_VARARGS, nullptr},
    {"forget", forget, METH_NOARGS, nullptr},
    {"expect", expect, METH_NOARGS, nullptr},
    {"count_kinds", count_kinds, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

// ------------------------------------------------------------------------------------------------------- the module

// A slot of a class or of one of its bases, or null: borrowed.
PyMemberDef* slot_of(PyTypeObject* type, const char* name) {
  Reference key(checked(PyUnicode_InternFromString(name)));
  PyObject* found = _PyType_Lookup(type, key.get());
  if (!found || !Py_IS_TYPE(found, &PyMemberDescr_Type)) return nullptr;
  return reinterpret_cast<PyMemberDescrObject*>(found)->d_member;
}

// take_over(object, native): calls of an op or a kernel come here; what else they run is the `__call__` of its class.
//
// The class has two slots, `_native` and `_vectorcall`, which lie side by side in the object. The first holds a Call or
// a Boxed. The second holds an address from now on, and Python's collector must not take it for an object: so its kind
// is changed.
PyObject* take_over(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  PyObject *object, *native;
  if (!PyArg_ParseTuple(given, "OO", &object, &native)) return nullptr;
  PyTypeObject* type = Py_TYPE(object);
  PyMemberDef *before = slot_of(type, "_native"), *member = slot_of(type, "_vectorcall");
  TORCH_CHECK_TYPE(before && member, type->tp_name, " has not the two slots of an op or a kernel");
  TORCH_CHECK_TYPE(before->offset + Py_ssize_t(sizeof(PyObject*)) == member->offset, "the slots lie apart");
  TORCH_CHECK_TYPE(Py_TYPE(native) == &CallType || Py_TYPE(native) == &BoxedType, "not a Call or a Boxed");
  if (PyObject_SetAttrString(object, "_native", native) < 0) return nullptr;
  member->type = T_PYSSIZET;
  member->flags = READONLY;
  *reinterpret_cast<vectorcallfunc*>(reinterpret_cast<char*>(object) + member->offset) = guarded<call_checked>;
  type->tp_vectorcall_offset = member->offset;
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  type->tp_call = call_with_tuple;
  PyType_Modified(type);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// running_context(): a ctx for the node whose backward runs in this thread
PyObject* running_context(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  auto* running = NativeNode::Running::innermost();
  if (!running) {
    PyErr_SetString(PyExc_RuntimeError, "no backward of a native node runs in this thread");
    return nullptr;
  }
  return running->node->context(*running->values);
  END_HANDLE_TH_ERRORS
}

// with_keys_restored(function, *args, **kwargs): calls a function in which operations conjugate and negate lazily, and
// torch.func transforms what it is given. The handler of a TorchDispatchMode runs without the keys for either.
PyObject* with_keys_restored(PyObject*, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  auto keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ - c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                                         c10::DispatchKey::ZeroTensor,
                                                         c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                         c10::DispatchKey::FuncTorchDynamicLayerBackMode,
                                                         c10::DispatchKey::FuncTorchGradWrapper,
                                                         c10::DispatchKey::FuncTorchBatched,
                                                         c10::DispatchKey::FuncTorchVmapMode});
  c10::impl::ForceDispatchKeyGuard guard(keys);
  return PyObject_Vectorcall(given[0], given + 1, count - 1, names);
  END_HANDLE_TH_ERRORS
}

// Kernels may have been registered with the dispatcher, or withdrawn.
PyObject* note_change(PyObject*, PyObject*) {
  ++changes_of_kernels;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"note_change", note_change, METH_NOARGS, nullptr},
    {"is_own", is_own, METH_VARARGS, nullptr},
    {"read_code_by", read_code_by, METH_O, nullptr},
    {"take_over", take_over, METH_VARARGS, nullptr},
    {"running_context", running_context, METH_NOARGS, nullptr},
    {"with_keys_restored", reinterpret_cast<PyCFunction>(with_keys_restored), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "call", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// Returns 1 if the exception that a kernel of another library raises arrives here, as native calls need: see kernels/trial.py.
extern "C" __attribute__((used, visibility("default"))) int custom_autograd_catches(Stable kernel, uint64_t number) {
  try {
    kernel(&number, 1, 1);
  } catch (const std::exception& error) {
    return std::strstr(error.what(), "trial ") != nullptr;
  }
  return 0;
}

PyMODINIT_FUNC PyInit_call() {
  HANDLE_TH_ERRORS
  call_name = PyUnicode_InternFromString("__call__");
  Observers::expect_forks();
  CallType.tp_name = "custom_autograd.native.Call";
  CallType.tp_basicsize = sizeof(Call);
  CallType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  CallType.tp_new = created;
  CallType.tp_init = initialise;
  CallType.tp_dealloc = destroyed;
  CallType.tp_traverse = traverse;
  CallType.tp_clear = clear;
  CallType.tp_methods = methods;
  if (PyType_Ready(&CallType) < 0) return nullptr;
  BoxedType.tp_name = "custom_autograd.native.Boxed";
  BoxedType.tp_basicsize = sizeof(Boxed);
  BoxedType.tp_flags = Py_TPFLAGS_DEFAULT;
  BoxedType.tp_new = create_boxed;
  BoxedType.tp_methods = boxed_methods;
  BoxedType.tp_dealloc = destroy_boxed;
  OverloadType.tp_name = "custom_autograd.native.Overload";
  OverloadType.tp_basicsize = sizeof(Overload);
  OverloadType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  OverloadType.tp_vectorcall_offset = offsetof(Overload, vectorcall);
  OverloadType.tp_call = PyVectorcall_Call;
  OverloadType.tp_new = create_overload;
  OverloadType.tp_dealloc = destroy_overload;
  OverloadType.tp_traverse = traverse_overload;
  OverloadType.tp_getattro = overload_getattr;
  OverloadType.tp_setattro = overload_setattr;
  OverloadType.tp_hash = overload_hash;
  OverloadType.tp_richcompare = overload_equals;
  OverloadType.tp_methods = overload_methods;
  if (PyType_Ready(&OverloadType) < 0) return nullptr;
  if (PyType_Ready(&BoxedType) < 0 || rule_context::make_type() < 0) return nullptr;
  NodeType.tp_getattro = node_getattr;
  NodeType.tp_repr = node_repr;
  torch::autograd::_initFunctionPyTypeObject(NodeType, "custom_autograd.native.CppFunction", node_properties, node_methods);
  torch::autograd::registerCppFunction(typeid(NativeNode), &NodeType);
  Reference found(checked(PyModule_Create(&module)));
  auto add_type = [&](const char* name, PyTypeObject& type) {
    return PyModule_AddObjectRef(found.get(), name, reinterpret_cast<PyObject*>(&type)) == 0;
  };
  if (!add_type("Call", CallType) || !add_type("Boxed", BoxedType) || !add_type("Overload", OverloadType) ||
      !add_type("Node", NodeType))
    return nullptr;
  return found.release();
  END_HANDLE_TH_ERRORS
}
