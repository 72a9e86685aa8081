// Objects of our classes as arguments. Python can make one without its contents (`T.__new__(T)`), for which pybind11
// would hand out raw memory: here it is a TypeError, wherever it is taken.
#pragma once

#include "bindings/messages.hpp"

namespace simdformer {

// What a class is called, and how its objects are made.
template <class T>
struct Made;

// An argument's T; null where it is something else.
template <class T>
T* made_or_null(const Arg& arg, py::handle object) {
  const auto* const type = py::detail::get_type_info(typeid(T));
  if (!PyType_IsSubtype(Py_TYPE(object.ptr()), type->type)) return nullptr;
  const auto own = reinterpret_cast<py::detail::instance*>(object.ptr())->get_value_and_holder(type);
  if (!own.holder_constructed())
    refuse_type(arg, std::string("is of type ") + Made<T>::kName + " and without contents", "a whole one",
                Made<T>::kAdvice);
  return own.template value_ptr<T>();
}

// For methods: pybind11::detail::type_caster of such a class.
template <class T>
struct MadeCaster : py::detail::type_caster_base<T> {
  bool load(py::handle object, bool) {
    return (this->value = made_or_null<T>({Made<T>::kName, "self"}, object)) != nullptr;
  }
};

}  // namespace simdformer
