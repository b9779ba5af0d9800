// The C ABI as C sees it: this program is compiled as C99. Prints nothing unless something is wrong.
#include "check.h"

int failures = 0;

int main(void) {
  girih_context_options options;
  OK(girih_context_options_init(&options, sizeof options));
  options.num_workers = 3;
  girih_context* context = NULL;
  OK(girih_context_create(&options, &context));
  if (context == NULL) return 1;
  test_attention(context);
  test_variants(context);
  test_errors(context);
  test_operators(context);
  test_sampling(context);
  girih_context_destroy(context);
  return failures == 0 ? 0 : 1;
}
