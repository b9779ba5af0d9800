// The extension module girih._girih: the C++ library as Python sees it. girih/__init__.py is what users import.
#include "bind.h"
#include "girih/version.h"

NB_MODULE(_girih, m) {
  // Objects that live as long as the process (a thread's context, expressions of a module) are no leaks, and a library prints nothing.
  nanobind::set_leak_warnings(false);
  m.doc() = "The compiled part of girih.";
  m.attr("__version__") = girih::kVersion;
  girih::python::bind_errors(m);
  girih::python::bind_context(m);
  girih::python::bind_variant(m);
  girih::python::bind_show(m);
  girih::python::bind_attention(m);
  girih::python::bind_merge(m);
  girih::python::bind_page(m);
  girih::python::bind_info(m);
  girih::python::bind_quantize(m);
  girih::python::bind_norm(m);
  girih::python::bind_activation(m);
  girih::python::bind_rotation(m);
  girih::python::bind_rope_append(m);
  girih::python::bind_sampling(m);
}
