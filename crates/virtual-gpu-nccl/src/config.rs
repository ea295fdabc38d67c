//! `ncclConfig_t`: the options of a communicator.
//!
//! Only `blocking` changes what a program observes. `splitShare`, `shrinkShare`, `netName`, `commName`, `trafficClass`,
//! and the numbers of blocks, channels, contexts, and peers are checked but have no effect, because the virtual GPU has
//! nothing for them to tune.

use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// The options that a communicator was created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommConfig {
    /// Whether calls return only once they are done.
    pub blocking: bool,
}

impl Default for CommConfig {
    fn default() -> Self {
        Self { blocking: true }
    }
}

/// The first bytes of a valid structure (`NCCL_API_MAGIC`).
const MAGIC: u32 = 0xcafe_beef;
/// The value of an unset field (`NCCL_CONFIG_UNDEF_INT`).
const UNSET: i32 = i32::MIN;

/// An integer field: its name, its offset, the version that introduced it, and its valid values.
struct Field {
    name: &'static str,
    offset: usize,
    since: u32,
    values: std::ops::RangeInclusive<i32>,
}

const fn field(
    name: &'static str,
    offset: usize,
    since: u32,
    values: std::ops::RangeInclusive<i32>,
) -> Field {
    Field { name, offset, since, values }
}

const FLAG: std::ops::RangeInclusive<i32> = 0..=1;
const POSITIVE: std::ops::RangeInclusive<i32> = 1..=i32::MAX;
const ANY: std::ops::RangeInclusive<i32> = i32::MIN..=i32::MAX;
/// The maximum number of channels in a communicator.
const CHANNELS: i32 = 64;

/// The fields of NCCL 2.30's `ncclConfig_t`, with the values that its `parseCommConfig` accepts.
const FIELDS: [Field; 15] = [
    field("blocking", 16, 21_400, FLAG),
    field("cgaClusterSize", 20, 21_700, 0..=i32::MAX),
    field("minCTAs", 24, 21_700, POSITIVE),
    field("maxCTAs", 28, 21_700, POSITIVE),
    field("splitShare", 40, 21_400, FLAG),
    field("trafficClass", 44, 22_500, ANY),
    field("collnetEnable", 56, 22_700, FLAG),
    field("CTAPolicy", 60, 22_700, 0..=3),
    field("shrinkShare", 64, 22_700, FLAG),
    field("nvlsCTAs", 68, 22_700, POSITIVE),
    field("nChannelsPerNetPeer", 72, 22_800, 1..=CHANNELS),
    field("nvlinkCentricSched", 76, 22_800, FLAG),
    field("graphUsageMode", 80, 22_900, 0..=2),
    field("numRmaCtx", 84, 22_900, 0..=i32::MAX),
    field("maxP2pPeers", 88, 23_000, POSITIVE),
];

impl CommConfig {
    /// Returns the names, offsets, and first versions of the integer fields.
    pub fn fields() -> impl Iterator<Item = (&'static str, usize, u32)> {
        FIELDS.iter().map(|field| (field.name, field.offset, field.since))
    }

    /// The size of the part of the structure that is read, in bytes.
    pub const SIZE: usize = 96;

    /// Reads a structure that C code filled in, up to the number of bytes in its own `size` field.
    ///
    /// # Errors
    /// Returns an `InvalidArgument` error that names the field.
    pub fn from_bytes(bytes: &[u8]) -> NcclResult<Self> {
        let bad = |message: String| Error::new(NcclStatus::InvalidArgument, message);
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let (Some(magic), Some(version)) = (word(8), word(12)) else {
            return Err(bad(format!("ncclConfig_t: size {} is too small", bytes.len())));
        };
        if magic != MAGIC {
            let message = format!(
                "ncclConfig_t: magic {magic:#x} is not {MAGIC:#x}: start from NCCL_CONFIG_INITIALIZER"
            );
            return Err(bad(message));
        }
        let value = |name: &str| {
            let field = FIELDS.iter().find(|field| field.name == name)?;
            let value = word(field.offset).filter(|_| version >= field.since)? as i32;
            (value != UNSET).then_some(value)
        };
        for Field { name, values, .. } in &FIELDS {
            if let Some(value) = value(name)
                && !values.contains(&value)
            {
                let most = match *values.end() {
                    i32::MAX => "or more".to_owned(),
                    most => format!("to {most}"),
                };
                return Err(bad(format!(
                    "ncclConfig_t: {name} {value}: it must be {} {most}",
                    values.start()
                )));
            }
        }
        if let (Some(least), Some(most)) = (value("minCTAs"), value("maxCTAs"))
            && least > most
        {
            return Err(bad(format!("ncclConfig_t: minCTAs {least} is more than maxCTAs {most}")));
        }
        Ok(Self { blocking: value("blocking") != Some(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the `NCCL_CONFIG_INITIALIZER` of a version, with some fields set.
    fn config(version: u32, fields: &[(usize, i32)]) -> Vec<u8> {
        let mut bytes = vec![0; CommConfig::SIZE];
        for field in &FIELDS {
            bytes[field.offset..field.offset + 4].copy_from_slice(&UNSET.to_le_bytes());
        }
        bytes[8..12].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[12..16].copy_from_slice(&version.to_le_bytes());
        for (offset, value) in fields {
            bytes[*offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn an_untouched_structure_is_the_default() {
        assert_eq!(CommConfig::from_bytes(&config(23_007, &[])), Ok(CommConfig::default()));
        assert_eq!(CommConfig::from_bytes(&config(23_007, &[(16, 0)])), Ok(CommConfig { blocking: false }));
    }

    #[test]
    fn fields_that_a_version_does_not_have_are_ignored() {
        assert_eq!(CommConfig::from_bytes(&config(21_300, &[(16, 0)])), Ok(CommConfig::default()));
        assert!(CommConfig::from_bytes(&config(21_700, &[(56, 7)])).is_ok());
        assert!(CommConfig::from_bytes(&config(22_700, &[(56, 7)])).is_err());
        assert!(
            CommConfig::from_bytes(&config(23_007, &[(24, 2)])[..40]).is_ok(),
            "an older, shorter structure"
        );
    }

    #[test]
    fn a_bad_value_is_named() {
        for (fields, words) in [
            (vec![(16, 2)], "blocking 2: it must be 0 to 1"),
            (vec![(24, 0)], "minCTAs 0: it must be 1 or more"),
            (vec![(24, 9), (28, 8)], "minCTAs 9 is more than maxCTAs 8"),
            (vec![(72, 65)], "nChannelsPerNetPeer 65: it must be 1 to 64"),
            (vec![(8, 0)], "magic 0x0"),
        ] {
            let error = CommConfig::from_bytes(&config(23_007, &fields)).unwrap_err();
            assert!(error.message.contains(words), "{}", error.message);
        }
        assert!(CommConfig::from_bytes(&[0; 8]).unwrap_err().message.contains("size 8"));
    }
}
