//! Maps by handle and key. The program chooses no keys, so a fast hash without a random seed is enough, and every run
//! visits the entries in the same order.

use std::collections::HashMap;

/// A hash map whose keys are the virtual GPU's own.
pub type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;
