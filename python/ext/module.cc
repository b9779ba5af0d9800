// The extension module girih._girih: the C++ library as Python sees it. girih/__init__.py is what users import.
#include "bind.h"
#include "girih/version.h"

NB_MODULE(_girih, m) {
  m.doc() = "The compiled part of girih.";
  m.attr("__version__") = girih::kVersion;
  girih::python::bind_errors(m);
  girih::python::bind_context(m);
  girih::python::bind_variant(m);
  girih::python::bind_attention(m);
}
