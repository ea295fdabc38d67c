//! Finds the tiers that the selected checks run on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use libtest_mimic::{Arguments, Trial};

use super::definition::Check;
use crate::tier::{self, Tier, tier_for};

/// The tier for each number of ranks that checks need, or the reason why no tier can run that many.
pub(super) type Tiers = BTreeMap<usize, Result<Tier, String>>;

/// Returns the tier for each number of ranks that the selected checks need, or the reason why no tier can run that
/// many.
///
/// If not even one rank can run, every check would be ignored, and the run would print `ok` without checking anything.
/// That case is therefore an error for the entire run.
pub(super) fn selected(arguments: &Arguments, checks: &[Check]) -> anyhow::Result<Tiers> {
    let asked: BTreeSet<usize> = checks
        .iter()
        .filter(|check| !arguments.is_filtered_out(&Trial::test(check.name(), || Ok(()))))
        .map(|check| check.ranks())
        .collect();
    if !asked.is_empty() {
        tier_for(1).context("no check can run here")?;
    }
    Ok(asked
        .into_iter()
        .map(|ranks| (ranks, tier_for(ranks).map_err(|error| format!("{error:#}"))))
        .collect())
}

/// Returns the tier that all checks run on; `None` if there are several, or none.
pub(super) fn only(tiers: &Tiers) -> Option<Tier> {
    let mut able = tiers.values().filter_map(|tier| tier.as_ref().ok());
    let first = able.next()?;
    able.all(|tier| tier == first).then_some(*first)
}

/// Returns the line that announces where the checks run.
///
/// # Errors
/// Returns any error from [`tier::describe`].
pub(super) fn announcement(tiers: &Tiers) -> anyhow::Result<String> {
    announcement_with(tiers, tier::describe)
}

/// Returns the announcement. `describe` returns the text for a number of ranks.
fn announcement_with(
    tiers: &Tiers,
    describe: impl Fn(usize) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut first_ranks: Vec<(Tier, usize)> = Vec::new();
    for (&ranks, tier) in tiers {
        if let Ok(tier) = *tier
            && first_ranks.iter().all(|(known, _)| *known != tier)
        {
            first_ranks.push((tier, ranks));
        }
    }
    let mut parts = Vec::new();
    for (_, ranks) in &first_ranks {
        let text = describe(*ranks)?;
        parts.push(match first_ranks.len() {
            1 => text,
            _ => format!("from {ranks} {} on {text}", if *ranks == 1 { "rank" } else { "ranks" }),
        });
    }
    Ok(match parts.as_slice() {
        [] => "tier: none can run the selected checks".to_owned(),
        parts => format!("tier: {}", parts.join("; ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_tier_is_that_of_all_checks_that_can_run() {
        let refused = (9, Err("there are 8 GPUs".to_owned()));
        let tiers = |list: &[(usize, Result<Tier, String>)]| list.iter().cloned().collect::<Tiers>();
        assert_eq!(
            only(&tiers(&[(1, Ok(Tier::Virtual)), (2, Ok(Tier::Virtual)), refused.clone()])),
            Some(Tier::Virtual)
        );
        assert_eq!(only(&tiers(&[(1, Ok(Tier::Real)), (2, Ok(Tier::Virtual))])), None);
        assert_eq!(only(&tiers(&[refused])), None);
    }

    #[test]
    fn the_announcement_names_each_tier_that_will_run() {
        let tiers = BTreeMap::from([
            (1, Ok(Tier::Real)),
            (2, Ok(Tier::Virtual)),
            (4, Ok(Tier::Virtual)),
            (9, Err("there are 8 GPUs".to_owned())),
        ]);
        let line = announcement_with(&tiers, |ranks| Ok(format!("<{ranks}>"))).unwrap();
        assert_eq!(line, "tier: from 1 rank on <1>; from 2 ranks on <2>");
        let one = BTreeMap::from([(2, Ok(Tier::Virtual)), (4, Ok(Tier::Virtual))]);
        assert_eq!(announcement_with(&one, |_| Ok("virtual".to_owned())).unwrap(), "tier: virtual");
    }
}
