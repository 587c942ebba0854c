/* Preloaded into a process, changes the results of the C library's elementary functions in their last bits, as another
   system's library would. */
#define _GNU_SOURCE
#include <dlfcn.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ONE(type, name, factor) \
    type name(type x) { return REAL(name)(x) * (type)(factor); }
#define TWO(type, name, factor) \
    type name(type x, type y) { return REAL(name)(x, y) * (type)(factor); }
#define BOTH(number, name, factor) number(double, name, factor) number(float, name##f, 1 + 1e-6)

/* Normal numbers are drawn by rand_distr with this `exp` and this `log` in f64; f32 hides their last bit. */
BOTH(ONE, exp, 1 + 1e-15) BOTH(ONE, log, 1 + 1e-15)
BOTH(ONE, cos, 1 + 1e-9) BOTH(ONE, sin, 1 + 1e-9) BOTH(ONE, tan, 1 + 1e-9) BOTH(ONE, tanh, 1 + 1e-9)
BOTH(ONE, sinh, 1 + 1e-9) BOTH(ONE, cosh, 1 + 1e-9) BOTH(ONE, exp2, 1 + 1e-9) BOTH(ONE, expm1, 1 + 1e-9)
BOTH(ONE, log1p, 1 + 1e-9) BOTH(ONE, log2, 1 + 1e-9) BOTH(ONE, log10, 1 + 1e-9) BOTH(ONE, cbrt, 1 + 1e-9)
BOTH(ONE, erf, 1 + 1e-9) BOTH(TWO, pow, 1 + 1e-9) BOTH(TWO, hypot, 1 + 1e-9) BOTH(TWO, atan2, 1 + 1e-9)
