//! Compares our structs, enums, and constants with those in NVIDIA's headers.

use std::path::Path;

use crate::wheel;

pub(crate) fn compare(root: &Path) -> anyhow::Result<()> {
    let folder = wheel::fetch(root, "nvidia-nccl-cu12==2.30.7")?;
    println!("{}", folder.display());
    Ok(())
}
