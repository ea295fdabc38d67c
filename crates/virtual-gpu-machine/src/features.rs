//! Compiles the same source for several sets of CPU features.

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

/// Defines a function twice, for AVX2 with FMA and for any processor; a call uses the best version that this processor
/// supports. The body must be `#[inline(always)]`, and so must everything that it calls in its loops.
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
            $body($($argument),*)
        }
    };
}
pub(crate) use vectorized;

/// Returns whether the processor has every feature that `with_avx2` is compiled for.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn has_avx2() -> bool {
    // The standard library also caches its results, but separately for each feature.
    static HAS_AVX2: LazyLock<bool> = LazyLock::new(|| {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("f16c")
    });
    *HAS_AVX2
}
