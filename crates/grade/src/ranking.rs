//! The order of the students in exercises that have a score.

use std::collections::BTreeMap;

use course::results::Class;
use course::scores;
use lab::Score;

/// A student's place in an exercise.
pub(crate) struct Ranked<'a> {
    /// The place, from 1. Equal scores share a place.
    pub(crate) place: usize,
    pub(crate) student: &'a str,
    pub(crate) score: &'a Score,
    /// Whether the answer is the course's own solution.
    pub(crate) is_solution: bool,
}

/// Returns the exercises that have scores, each with its students, the best first. Only right answers have a score.
pub(crate) fn ranking(class: &Class) -> BTreeMap<&str, Vec<Ranked<'_>>> {
    let mut all: BTreeMap<&str, Vec<Ranked<'_>>> = BTreeMap::new();
    for student in &class.students {
        for line in &student.exercises {
            let Some(score) = &line.score else { continue };
            let is_solution = line.is_solution == Some(true);
            let ranked = Ranked { place: 0, student: &student.name, score, is_solution };
            all.entry(&line.id).or_default().push(ranked);
        }
    }
    for ranked in all.values_mut() {
        ranked
            .sort_by(|one, other| scores::order(one.score, other.score).then(one.student.cmp(other.student)));
        for index in 0..ranked.len() {
            let before = index.checked_sub(1).map(|before| &ranked[before]);
            let same = before.filter(|before| scores::order(before.score, ranked[index].score).is_eq());
            ranked[index].place = same.map_or(index + 1, |before| before.place);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use course::results::{Line, State, Student};

    use super::*;

    fn student(name: &str, score: Option<Score>) -> Student {
        let line = Line {
            id: "scale/capstone".to_owned(),
            state: State::Right,
            reason: None,
            checks: Vec::new(),
            hints: 0,
            is_solution: Some(name == "cy"),
            sha256: None,
            score,
        };
        Student { name: name.to_owned(), exercises: vec![line], unused: Vec::new() }
    }

    #[test]
    fn the_fastest_is_first_and_equal_scores_share_a_place() {
        let score = |microseconds| {
            let times = "modeled".to_owned();
            Some(Score { ranks: 4, microseconds, bound: 500.0, sent: Some(1), memory: 2, times })
        };
        let students = [("ann", score(900.0)), ("bob", None), ("cy", score(600.0)), ("dee", score(600.0))];
        let class = Class {
            course: "1".to_owned(),
            tier: "virtual".to_owned(),
            sandbox: "x".to_owned(),
            students: students.map(|(name, score)| student(name, score)).into(),
        };
        let all = ranking(&class);
        let places: Vec<_> =
            all["scale/capstone"].iter().map(|one| (one.place, one.student, one.is_solution)).collect();
        assert_eq!(places, [(1, "cy", true), (1, "dee", false), (3, "ann", false)]);
    }
}
