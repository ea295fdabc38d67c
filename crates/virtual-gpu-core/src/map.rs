//! Maps whose keys the virtual GPU chooses, such as handles. The program can't choose them, so a fast hash without a
//! random seed is enough, and every run visits the entries in the same order.

use std::collections::HashMap;

/// A hash map whose keys are chosen by the virtual GPU.
pub type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;
