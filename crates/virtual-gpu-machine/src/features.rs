//! Compiles the same source for several sets of CPU features.

#[cfg(all(target_arch = "x86_64", not(only_avx2)))]
use std::sync::LazyLock;

use crate::processor;

/// Defines a function twice, for AVX2 with FMA and for any processor; a call uses the best version that this processor
/// supports. With `only_avx2` (see the build script), there is only the first version. The body must be `#[inline(always)]`, and
/// so must everything that it calls in its loops.
macro_rules! vectorized {
    ($(#[$attribute:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $answer:ty)? = $body:path) => {
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) fn $name($($argument: $kind),*) $(-> $answer)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx,avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn with_avx2($($argument: $kind),*) $(-> $answer)? {
                $body($($argument),*)
            }
            #[cfg(only_avx2)]
            // SAFETY: a launch begins only on a processor that has every feature that the function was compiled for.
            return unsafe { with_avx2($($argument),*) };
            #[cfg(all(target_arch = "x86_64", not(only_avx2)))]
            if $crate::features::uses_avx2() {
                // SAFETY: the processor has every feature that the function was compiled for.
                return unsafe { with_avx2($($argument),*) };
            }
            #[cfg(not(only_avx2))]
            $body($($argument),*)
        }
    };
}
pub(crate) use vectorized;

/// Returns whether the loops that run are those for AVX2 and FMA.
#[inline]
pub(crate) fn uses_avx2() -> bool {
    #[cfg(all(target_arch = "x86_64", not(only_avx2)))]
    {
        // The standard library also caches its results, but separately for each feature.
        static HAS_AVX2: LazyLock<bool> = LazyLock::new(processor::has_avx2);
        *HAS_AVX2
    }
    #[cfg(not(all(target_arch = "x86_64", not(only_avx2))))]
    cfg!(only_avx2)
}

/// Checks that this processor can run the loops that were compiled.
///
/// # Errors
/// Fails if only loops for AVX2 were compiled, and this processor lacks it.
pub(crate) fn check_processor() -> Result<(), String> {
    if cfg!(only_avx2) && !processor::has_avx2() {
        return Err("the virtual GPU was built on another machine, for processors with AVX2 and FMA, which this processor doesn't \
                    have: build it here, or there with VIRTUAL_GPU_PORTABLE=1"
            .to_owned());
    }
    Ok(())
}
