//! When each step of a path happens. The list of a path, its slides, and the book show these times.

use anyhow::Context;

use super::{Course, Exercise, Route, Step};

/// A step of a path, and when it happens.
pub struct Scheduled {
    /// The start of the step, in minutes after the start of the path.
    pub start: u32,
    /// The time to talk before the step's exercises, in minutes.
    pub talk: u32,
    /// The step.
    pub step: Step,
}

impl Scheduled {
    /// Returns the end of the step, in minutes after the start of the path.
    pub fn end(&self) -> u32 {
        self.start + self.step.minutes
    }
}

impl Course {
    /// Returns a path's steps with their times. If the path lists no steps, each exercise is a step.
    pub fn schedule(&self, path: &Route) -> Vec<Scheduled> {
        let whole = |exercise: &Exercise| Step {
            minutes: exercise.minutes,
            exercises: vec![exercise.id.clone()],
            instead: None,
        };
        let steps = path.steps.clone().unwrap_or_else(|| self.exercises.iter().map(whole).collect());
        let mut start = 0;
        let scheduled = steps.into_iter().map(|step| {
            let talk = match step.instead {
                Some(_) => 0,
                None => step.minutes.saturating_sub(self.minutes_to_work(&step)),
            };
            let scheduled = Scheduled { start, talk, step };
            start = scheduled.end();
            scheduled
        });
        scheduled.collect()
    }

    /// Returns a path's exercises, in its order.
    ///
    /// # Errors
    /// Fails if a step names an exercise that doesn't exist.
    pub fn exercises_of(&self, path: &Route) -> anyhow::Result<Vec<&Exercise>> {
        let steps = self.schedule(path);
        let ids = steps.iter().flat_map(|scheduled| &scheduled.step.exercises);
        let found = ids.map(|id| {
            let exercise = self.exercises.iter().find(|exercise| exercise.id == *id);
            exercise.with_context(|| format!("path {}: there is no exercise `{id}`", path.name))
        });
        found.collect()
    }

    /// Returns a path's length in minutes.
    pub fn length(&self, path: &Route) -> u32 {
        self.schedule(path).last().map_or(0, Scheduled::end)
    }

    /// Returns how long students work on a step's exercises, in minutes.
    pub(super) fn minutes_to_work(&self, step: &Step) -> u32 {
        let exercises = self.exercises.iter().filter(|exercise| step.exercises.contains(&exercise.id));
        exercises.map(|exercise| exercise.minutes).sum()
    }
}

/// Formats minutes as hours and minutes, such as `1:05`.
pub fn clock(minutes: u32) -> String {
    format!("{}:{:02}", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syllabus::tests::GOOD;

    #[test]
    fn steps_follow_each_other_and_talk_comes_before_exercises() {
        let text = format!(
            "{GOOD}\n[[path]]\nname = \"short\"\ntitle = \"Short\"\nsteps = [\n\
             {{ minutes = 5, instead = \"a demo\" }},\n\
             {{ minutes = 25, exercises = [\"init/devices\"] }},\n\
             {{ minutes = 40, instead = \"lunch\" }},\n]\n\
             [[path]]\nname = \"all\"\ntitle = \"All\"\n"
        );
        let course = Course::parse(&text).unwrap();
        let times = |name| {
            let steps = course.schedule(course.path(name).unwrap());
            steps.iter().map(|step| (step.start, step.talk, step.end())).collect::<Vec<_>>()
        };
        assert_eq!(times("short"), [(0, 0, 5), (5, 15, 30), (30, 0, 70)]);
        assert_eq!(times("all"), [(0, 0, 10)]);
        assert_eq!(clock(course.length(course.path("short").unwrap())), "1:10");
        let ids = |course: &Course| {
            let exercises = course.exercises_of(course.path("short").unwrap())?;
            anyhow::Ok(exercises.iter().map(|exercise| exercise.id.clone()).collect::<Vec<_>>())
        };
        assert_eq!(ids(&course).unwrap(), ["init/devices"]);
        let course = Course::parse(&text.replace("[\"init/devices\"]", "[\"init/device\"]")).unwrap();
        assert_eq!(ids(&course).unwrap_err().to_string(), "path short: there is no exercise `init/device`");
    }
}
