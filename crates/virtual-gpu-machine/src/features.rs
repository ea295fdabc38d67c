//! Compiles the same source for several sets of CPU features.

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

#[cfg(target_arch = "x86_64")]
use crate::processor;

/// Defines a function twice, for AVX2 with FMA and for any processor; a call uses the best version that this processor
/// supports. With `only_avx2` (see the build script), there is only the first version. The body must be
/// `#[inline(always)]`, and so must everything that it calls in its loops.
macro_rules! vectorized {
    ($(#[$attribute:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $answer:ty)? = $body:path) => {
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) fn $name($($argument: $kind),*) $(-> $answer)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx,avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c")]
                #[allow(clippy::too_many_arguments)]
                fn with_avx2($($argument: $kind),*) $(-> $answer)? {
                    $body($($argument),*)
                }
                if $crate::features::has_avx2() {
                    // SAFETY: the processor has every feature that the function was compiled for.
                    return unsafe { with_avx2($($argument),*) };
                }
            }
            #[cfg(only_avx2)]
            panic!("{}", $crate::features::LACKS_AVX2);
            #[cfg(not(only_avx2))]
            $body($($argument),*)
        }
    };
}
pub(crate) use vectorized;

/// The error if everything was compiled only for AVX2, and this processor lacks a feature.
pub(crate) const LACKS_AVX2: &str = "the virtual GPU was built for processors with AVX2, FMA, BMI1, BMI2, LZCNT, POPCNT, and F16C, and \
                                     this one lacks at least one of them: build it with VIRTUAL_GPU_PORTABLE=1";

/// Returns whether the processor has every feature that `with_avx2` is compiled for.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn has_avx2() -> bool {
    // The standard library also caches its results, but separately for each feature.
    static HAS_AVX2: LazyLock<bool> = LazyLock::new(processor::has_avx2);
    *HAS_AVX2
}
