// Girih's C ABI (C99): everything that include/girih/*.h offers, behind opaque handles and plain structs. docs/c_api.md explains ownership,
// threads, errors and what stays stable; the parts are by operator area.
//
//   girih_context* context = NULL;
//   if (girih_context_create(NULL, &context) != GIRIH_OK) fprintf(stderr, "%s\n", girih_last_error());
//
// examples/c_decode/main.c decodes a batch over a paged cache.
#pragma once

#include "girih/c/attention.h"  // IWYU pragma: export
#include "girih/c/base.h"       // IWYU pragma: export
#include "girih/c/page.h"       // IWYU pragma: export
#include "girih/c/rope.h"       // IWYU pragma: export
#include "girih/c/rows.h"       // IWYU pragma: export
#include "girih/c/sampling.h"   // IWYU pragma: export
#include "girih/c/variant.h"    // IWYU pragma: export
