//! The colours of a terminal.

/// The colours that the output can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Palette {
    /// No colours: characters of growing density.
    Characters,
    /// The 256 colours that nearly every terminal has.
    Ansi256,
    /// 24-bit colours.
    TrueColor,
}

impl Palette {
    /// The parameters of a colour in an escape sequence; `None` without colours.
    pub(crate) fn code(self, color: [u8; 3]) -> Option<String> {
        match self {
            Self::Characters => None,
            Self::Ansi256 => Some(format!("5;{}", nearest_of_256(color))),
            Self::TrueColor => Some(format!("2;{};{};{}", color[0], color[1], color[2])),
        }
    }

    /// Text with this background and letter colour.
    pub(crate) fn on(self, [ground, letters]: [[u8; 3]; 2], text: &str) -> String {
        match (self.code(ground), self.code(letters)) {
            (Some(ground), Some(letters)) => format!("\u{1b}[38;{letters};48;{ground}m{text}\u{1b}[0m"),
            _ => text.to_owned(),
        }
    }
}

/// One of xterm's 256 colours, from 16: its colour cube, then its greys. The first 16 are the reader's own.
pub(crate) fn color_of_256(code: u8) -> [u8; 3] {
    let level = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
    match code - 16 {
        cube @ 0..216 => [cube / 36, cube / 6 % 6, cube % 6].map(level),
        grey => [8 + 10 * (grey - 216); 3],
    }
}

fn nearest_of_256(color: [u8; 3]) -> u8 {
    let distance = |code: &u8| -> u32 {
        color.iter().zip(color_of_256(*code)).map(|(one, other)| u32::from(one.abs_diff(other)).pow(2)).sum()
    };
    (16..=255).min_by_key(distance).expect("there are 240 colours")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_nearest_colours() {
        let colors = [[252, 255, 164], [0, 0, 0]];
        assert_eq!(Palette::Characters.on(colors, "a"), "a");
        assert_eq!(Palette::TrueColor.on(colors, "a"), "\u{1b}[38;2;0;0;0;48;2;252;255;164ma\u{1b}[0m");
        assert_eq!(Palette::Ansi256.on(colors, "a"), "\u{1b}[38;5;16;48;5;229ma\u{1b}[0m");
        assert_eq!([[255; 3], [34, 29, 26], [255, 180, 84]].map(nearest_of_256), [231, 234, 215]);
    }
}
