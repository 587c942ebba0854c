//! Draws the dashboard. Smaller windows have fewer panes.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Cell, Chart, Dataset, GraphType, LineGauge, Paragraph, Row, Table};

use super::board::{Activity, Board, Curve, METRICS, StepSample};
use super::load::Load;
use crate::format::{duration, grouped, whole, wrapped};
use crate::view::svg::plot::round_marks;

/// The colours of the two splits, of axes and of warnings, from the 256 terminal colours. Unlike the terminal's sixteen
/// basic colours they are fixed, and they stand out on white as well as on black.
const TRAIN: Color = Color::Indexed(33);
const VAL: Color = Color::Indexed(166);
const QUIET: Color = Color::Indexed(243);
const WARNING: Color = Color::Indexed(166);

/// The marks of the two splits, in charts and before their names.
const TRAIN_MARK: &str = "─";
const VAL_MARK: &str = "•";

/// The width of the table of metrics, including its frame.
const TABLE_WIDTH: u16 = 44;

/// The width below which the table has only names and the training split.
const NARROW: u16 = 36;

/// The window size from which four charts and the samples have panes.
const WIDE: [u16; 2] = [120, 30];

/// The window size from which every metric has a chart, that of the selected one a large one, and the samples a pane
/// below the table.
const LARGE: [u16; 2] = [160, 44];

/// The width of the table and the samples in such a window.
const LARGE_TABLE_WIDTH: u16 = 64;

/// The rows of a chart for each number of its axis.
const ROWS_PER_MARK: u16 = 3;

const CHART_WIDTH: u16 = 30;

/// Draws the board. The dashboard has been open for `elapsed`.
pub(crate) fn draw(frame: &mut Frame, board: &Board, elapsed: Duration, is_stopping: bool) {
    let area = frame.area();
    let is_at_least = |size: [u16; 2]| area.width >= size[0] && area.height >= size[1];
    let (is_wide, is_large) = (is_at_least(WIDE), is_at_least(LARGE));
    let log_height = if area.height < 20 { 0 } else { area.height * 3 / 10 };
    let progress_height = match area.height {
        0..12 => 2,
        12..20 => 4,
        _ => 5,
    };
    let [progress, metrics, log, keys] = Layout::vertical([
        Constraint::Length(progress_height),
        Constraint::Fill(1),
        Constraint::Length(log_height),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_progress(frame, progress, board, elapsed);
    if is_large {
        let [left, charts] =
            Layout::horizontal([Constraint::Length(LARGE_TABLE_WIDTH), Constraint::Fill(1)]).areas(metrics);
        let rows = u16::try_from(board.metrics.len()).unwrap_or(u16::MAX).saturating_add(3); // heading and frame
        let [table, samples] = Layout::vertical([Constraint::Length(rows), Constraint::Fill(1)]).areas(left);
        draw_table(frame, table, board);
        draw_samples(frame, samples, board);
        draw_all_charts(frame, charts, board);
    } else if area.width < TABLE_WIDTH + CHART_WIDTH {
        draw_table(frame, metrics, board);
    } else {
        let [table, charts] = Layout::horizontal([Constraint::Length(TABLE_WIDTH), Constraint::Fill(1)]).areas(metrics);
        draw_table(frame, table, board);
        if is_wide { draw_charts(frame, charts, board) } else { draw_chart(frame, charts, board, board.selected) }
    }
    if is_large {
        draw_log(frame, log, board, false);
    } else if is_wide {
        let [samples, log] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(log);
        draw_samples(frame, samples, board);
        draw_log(frame, log, board, false);
    } else {
        draw_log(frame, log, board, true);
    }
    draw_keys(frame, keys, board, is_stopping);
}

fn draw_progress(frame: &mut Frame, area: Rect, board: &Board, elapsed: Duration) {
    let mut inner = area;
    if area.height > 2 {
        let block = Block::bordered().title(format!(" {} ", board.title));
        inner = block.inner(area);
        frame.render_widget(block, area);
    }
    let rows = u16::from(inner.height >= 3); // the number of rows for the load
    let heights = [1, 1, rows].map(Constraint::Length);
    let [bar, words, load] = Layout::vertical(heights).areas(inner);
    let done = (board.step as f64 / board.max_steps.max(1) as f64).min(1.0);
    let label = format!(
        "step {}/{}  {:.0} %",
        grouped(board.step as u64),
        grouped(board.max_steps as u64),
        (done * 100.0).floor() // rounded down, so that 100 % means all steps
    );
    frame.render_widget(gauge(label, done), bar);
    let activity = match board.activity {
        Activity::Training => "training",
        Activity::Evaluating => "evaluating",
        Activity::EvaluatingFully => "evaluating the whole validation split",
    };
    let (evaluations, all) = (board.evaluations, board.evaluations_by(board.max_steps));
    let gone = duration(elapsed.as_secs_f64());
    let left = time_left(board, elapsed).map(|left| format!(", about {} left", duration(left))).unwrap_or_default();
    let rest = format!("   evaluations {evaluations}/{all}   {gone} elapsed{left}");
    frame.render_widget(Line::from(vec![activity.bold(), Span::raw(rest)]), words);
    if let Some(now) = board.load.filter(|_| !load.is_empty()) {
        draw_load(frame, load, &now);
    }
}

fn draw_load(frame: &mut Frame, area: Rect, load: &Load) {
    let [cpu, _, memory] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(2), Constraint::Fill(2)]).areas(area);
    frame.render_widget(gauge(format!("CPU {:>3.0} %", 100.0 * load.cpu), load.cpu), cpu);
    let share = load.used() as f64 / load.memory.total.max(1) as f64;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let label = format!("memory {:.1} of {:.1} GiB", gib(load.used()), gib(load.memory.total));
    frame.render_widget(gauge(label, share.min(1.0)), memory);
}

/// A label followed by a bar that is filled to `share`.
fn gauge(label: String, share: f64) -> LineGauge<'static> {
    let gauge = LineGauge::default().label(label).ratio(share).filled_symbol("█").unfilled_symbol("░");
    gauge.filled_style(TRAIN).unfilled_style(QUIET)
}

/// Draws the selected metric and those around it, in two rows of two charts.
fn draw_charts(frame: &mut Frame, area: Rect, board: &Board) {
    let first = board.selected.saturating_sub(3).min(METRICS.len() - 4);
    let halves = [Constraint::Fill(1), Constraint::Fill(1)];
    let rows: [Rect; 2] = Layout::vertical(halves).areas(area);
    for (row, area) in rows.into_iter().enumerate() {
        let columns: [Rect; 2] = Layout::horizontal(halves).areas(area);
        for (column, area) in columns.into_iter().enumerate() {
            draw_chart(frame, area, board, first + 2 * row + column);
        }
    }
}

/// Draws the selected metric large, and all others beside it.
fn draw_all_charts(frame: &mut Frame, area: Rect, board: &Board) {
    let [large, others] = Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).areas(area);
    draw_chart(frame, large, board, board.selected);
    let indices: Vec<usize> = (0..board.metrics.len()).filter(|index| *index != board.selected).collect();
    let rows = Layout::vertical(indices.iter().map(|_| Constraint::Fill(1))).split(others);
    for (index, area) in indices.into_iter().zip(rows.iter()) {
        draw_chart(frame, *area, board, index);
    }
}

fn draw_table(frame: &mut Frame, area: Rect, board: &Board) {
    let is_narrow = area.width < NARROW;
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let value = |curve: &Curve| right(curve.latest.map(number).unwrap_or_default());
    let rows = board.metrics.iter().enumerate().map(|(i, metric)| {
        let (mark, style) = if i == board.selected { ("▸ ", Modifier::BOLD) } else { ("  ", Modifier::empty()) };
        let (name, unit, _) = METRICS[i];
        let unit = if is_narrow { "" } else { unit };
        Row::new([Cell::from(format!("{mark}{name}{unit}")), value(&metric.train), value(&metric.val)]).style(style)
    });
    // This header is also the legend of the charts.
    let split = |mark: &'static str, color: Color, name: &'static str| {
        Cell::from(Line::from(vec![Span::styled(mark, color), Span::raw(" "), Span::raw(name)]).right_aligned())
    };
    let header = Row::new([Cell::from(""), split(TRAIN_MARK, TRAIN, "train"), split(VAL_MARK, VAL, "validation")]);
    let widths = [Constraint::Fill(1), Constraint::Length(9), Constraint::Length(if is_narrow { 0 } else { 12 })];
    let table = Table::new(rows, widths).header(header);
    // If there are few lines, values are more important than a frame.
    let table = if area.height > 5 && !is_narrow { table.block(Block::bordered().title(" metrics ")) } else { table };
    frame.render_widget(table, area);
}

fn draw_chart(frame: &mut Frame, area: Rect, board: &Board, index: usize) {
    let (metric, (name, unit, _)) = (&board.metrics[index], METRICS[index]);
    let name = Span::raw(format!(" {name}{unit} "));
    let block = Block::bordered().title(if index == board.selected { name.bold() } else { name });
    let points = || metric.train.points.iter().chain(metric.val.points.iter());
    let y = || points().map(|point| point.1);
    let (Some(y_min), Some(y_max)) = (y().reduce(f64::min), y().reduce(f64::max)) else {
        let nothing = Paragraph::new("no measurements yet").alignment(Alignment::Center).dim();
        frame.render_widget(nothing.block(block), area);
        return;
    };
    let x_min = board.first_step as f64;
    let x_max = points().fold(board.max_steps as f64, |max, point| max.max(point.0)).max(x_min + 1.0);
    let marks = round_marks([y_min, y_max], f64::from(area.height / ROWS_PER_MARK).clamp(1.0, 5.0));
    let (bottom, top) = (marks[0].0, marks[marks.len() - 1].0);
    let line =
        Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).style(TRAIN).data(&metric.train.points);
    // Dots can be told from the line even without colours.
    let dots = Dataset::default().marker(Marker::Dot).style(VAL).data(&metric.val.points);
    let datasets = if metric.val.points.is_empty() { vec![line] } else { vec![line, dots] };
    let chart = Chart::new(datasets)
        .x_axis(Axis::default().style(QUIET).bounds([x_min, x_max]).labels([x_min, x_max].map(whole)))
        .y_axis(Axis::default().style(QUIET).bounds([bottom, top]).labels(marks.into_iter().map(|(_, label)| label)))
        .block(block);
    frame.render_widget(chart, area);
}

/// Draws the samples of the model, newest first, wrapped.
fn draw_samples(frame: &mut Frame, area: Rect, board: &Board) {
    let block = Block::bordered().title(" samples ");
    let inner = block.inner(area);
    let mut rows: Vec<Line> = Vec::new();
    for StepSample { step, text } in &board.samples {
        rows.push(Line::styled(format!("step {}", grouped(*step as u64)), QUIET));
        let lines = text.lines().flat_map(|line| wrapped(line, usize::from(inner.width)));
        rows.extend(lines.map(Line::from));
        if rows.len() >= usize::from(inner.height) {
            break;
        }
    }
    frame.render_widget(Paragraph::new(rows).block(block), area);
}

/// Draws the last lines of the log, wrapped, with or without the lines of samples.
fn draw_log(frame: &mut Frame, area: Rect, board: &Board, has_samples: bool) {
    if area.is_empty() {
        return;
    }
    let block = Block::bordered().title(" log ");
    let inner = block.inner(area);
    let mut rows: Vec<String> = Vec::new();
    for line in board.lines.iter().rev().filter(|line| has_samples || !line.is_sample) {
        rows.extend(wrapped(&line.text, usize::from(inner.width)).into_iter().rev());
        if rows.len() >= usize::from(inner.height) {
            break;
        }
    }
    rows.truncate(usize::from(inner.height));
    let rows: Vec<Line> = rows.into_iter().rev().map(Line::from).collect();
    frame.render_widget(Paragraph::new(rows).block(block), area);
}

fn draw_keys(frame: &mut Frame, area: Rect, board: &Board, is_stopping: bool) {
    let words = match (is_stopping, board.activity) {
        (false, _) => " q or Ctrl-C: save and stop   ↑ ↓: another metric's chart",
        (true, Activity::EvaluatingFully) => " stopping; everything is saved",
        (true, _) => " stopping after this step; press Ctrl-C again to stop at once without saving",
    };
    let style = if is_stopping { Style::new().fg(WARNING).bold() } else { Style::new().dim() };
    frame.render_widget(Line::from(words).style(style), area);
}

/// The estimated number of seconds to the last step, at the average pace so far including evaluations.
fn time_left(board: &Board, elapsed: Duration) -> Option<f64> {
    let made = board.step.saturating_sub(board.first_step);
    let left = board.max_steps.saturating_sub(board.step);
    (made > 0 && left > 0).then(|| elapsed.as_secs_f64() / made as f64 * left as f64)
}

/// A number with three to five significant digits.
fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        size if !(0.01..1e15).contains(&size) => format!("{x:.2e}"),
        size if size < 10.0 => format!("{x:.4}"),
        size if size < 100.0 => format!("{x:.2}"),
        size if size < 1000.0 => format!("{x:.1}"),
        size => format!("{}{}", if x < 0.0 { "-" } else { "" }, whole(size)),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::measure::Machine;
    use crate::train::{Evaluation, Event, Logged, Started};
    use crate::view::terminal::palette::color_of_256;
    use crate::view::theme::luminance;

    /// The text that is drawn in a window of this size.
    fn picture(board: &Board, width: u16, height: u16, is_stopping: bool) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("drawing in memory cannot fail");
        let elapsed = Duration::from_secs(75);
        terminal.draw(|frame| draw(frame, board, elapsed, is_stopping)).expect("drawing in memory cannot fail");
        let cells = terminal.backend().buffer().content().chunks(usize::from(width.max(1)));
        let row = |row: &[ratatui::buffer::Cell]| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
        cells.map(|cells| row(cells).trim_end().to_owned() + "\n").collect()
    }

    /// The board of a run before its first step.
    fn begun() -> Board {
        let mut board = Board::default();
        let (run_dir, device) = ("runs/mine".into(), "flex".to_owned());
        let started = Started { run_dir, device, max_steps: 2000, eval_interval: 250, ..Started::default() };
        board.observe(&Event::Started(&started));
        board
    }

    fn running() -> Board {
        let mut board = begun();
        for interval in 1..=30_u32 {
            let train_loss = 1.0 + 3.0 / f64::from(interval);
            let logged = Logged { train_loss, learning_rate: 3e-4, tokens_per_s: 18_450.0, ..Logged::default() };
            board.observe(&Event::Stepped { step: 10 * interval as usize, loss: None });
            board.observe(&Event::Logged(&Logged { gradient_norm: 0.5, ..logged }));
            if interval == 25 {
                board.observe(&Event::Evaluated(&Evaluation { step: 250, val_loss: 1.25, ..Evaluation::default() }));
            }
        }
        board.metrics[4] = board.metrics[3].clone(); // the peak memory differs from machine to machine
        board.note("step   250/2,000  estimates: train loss 1.2000, val loss 1.2500 (best so far)");
        board.sampled("The cat\tsat", "sample:\n    | The cat\tsat");
        board.load = Some(Load { cpu: 0.935, memory: Machine { total: 16 << 30, available: 12 << 30 } });
        board.note("saved `runs/mine/checkpoints/step-000250` (best)");
        board
    }

    #[test]
    fn dashboard_shows_run() {
        assert_snapshot!(picture(&running(), 80, 24, false), @r"
        ┌ runs/mine on flex ───────────────────────────────────────────────────────────┐
        │step 300/2,000  15 % ████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░│
        │training   evaluations 1/8   1 min 15 s elapsed, about 7 min 5 s left         │
        │CPU  94 % ██████████████░  memory 4.0 of 16.0 GiB ███████░░░░░░░░░░░░░░░░░░░░░│
        └──────────────────────────────────────────────────────────────────────────────┘
        ┌ metrics ─────────────────────────────────┐┌ loss (nats/token) ───────────────┐
        │                      ─ train • validation││4│⡇                               │
        │▸ loss (nats/token)    1.1000       1.2500││ │⡇                               │
        │  learning rate       3.00e-4             ││3│⢸                               │
        │  speed (tokens/s)     18,450             ││ │⢸                               │
        │  gradient norm        0.5000             ││2│⢸                               │
        │  peak memory (MiB)    0.5000             ││ │⠘⡄                              │
        │                                          ││1│ ⠘⠒⠦•                           │
        │                                          ││ └────────────────────────────────│
        │                                          ││ 0                           2,000│
        └──────────────────────────────────────────┘└──────────────────────────────────┘
        ┌ log ─────────────────────────────────────────────────────────────────────────┐
        │step   250/2,000  estimates: train loss 1.2000, val loss 1.2500 (best so far) │
        │sample:                                                                       │
        │    | The cat sat                                                             │
        │saved `runs/mine/checkpoints/step-000250` (best)                              │
        │                                                                              │
        └──────────────────────────────────────────────────────────────────────────────┘
         q or Ctrl-C: save and stop   ↑ ↓: another metric's chart
        ");
    }

    #[test]
    fn wide_window_shows_four_charts_and_samples() {
        let mut board = running();
        let picture = picture(&board, 150, 40, false);
        for title in ["loss (nats/token)", "learning rate", "speed (tokens/s)", "gradient norm", "samples", "log"] {
            assert_eq!(picture.matches(&format!("┌ {title} ─")).count(), 1, "{title}:\n{picture}");
        }
        assert_eq!(picture.matches("The cat sat").count(), 1, "not in the log as well:\n{picture}");
        assert_eq!(picture.matches(" 2,000│").count(), 4, "axes reach to the last step:\n{picture}");
        board.select(-1);
        let picture = self::picture(&board, 150, 40, false);
        assert!(picture.contains("┌ peak memory (MiB) ─") && !picture.contains("┌ loss"), "{picture}");
    }

    #[test]
    fn large_window_leaves_no_pane_empty() {
        let mut board = running();
        board.sampled(&"The cat sat on the mat. ".repeat(80), "sample:");
        (0..20).for_each(|_| board.note("saved `runs/mine/checkpoints/step-000250` (best)"));
        let picture = picture(&board, 200, 50, false);
        for metric in ["loss (nats/token)", "learning rate", "speed (tokens/s)", "gradient norm"] {
            assert_eq!(picture.matches(&format!("┌ {metric} ─")).count(), 1, "{metric}:\n{picture}");
        }
        assert!(
            picture.contains("saved `runs/mine/checkpoints/step-000250` (best)   "),
            "a line of the log:\n{picture}"
        );
        // No pane is mostly empty: of the rows between the first and the last frame, none is blank from side to side.
        let is_blank = |line: &str| line.chars().all(|c| " │".contains(c));
        assert!(!picture.lines().any(is_blank), "{picture}");
        let n_samples = picture.matches("The cat sat").count();
        assert!(n_samples > 20, "{n_samples} of the sample:\n{picture}");
    }

    #[test]
    fn colours_contrast_with_black_and_white() {
        for color in [TRAIN, VAL, QUIET, WARNING] {
            let Color::Indexed(index @ 16..) = color else { panic!("{color} is the reader's own") };
            let l = luminance(color_of_256(index)) + 0.05;
            assert!(l / 0.05 >= 3.0 && 1.05 / l >= 3.0, "{color}: {:.2} and {:.2}", l / 0.05, 1.05 / l);
        }
    }

    #[test]
    fn small_window_shows_values() {
        assert_snapshot!(picture(&running(), 44, 7, true), @r"
        step 300/2,000  15 % ███░░░░░░░░░░░░░░░░░░░░
        training   evaluations 1/8   1 min 15 s elap
                                ─ train • validation
        ▸ loss (nats/token)      1.1000       1.2500
          learning rate         3.00e-4
          speed (tokens/s)       18,450
         stopping after this step; press Ctrl-C agai
        ");
    }

    #[test]
    fn tiny_window_shows_step_and_loss() {
        let picture = picture(&running(), 20, 5, false);
        assert!(["step 300/2,000", "loss", "1.1000"].iter().all(|part| picture.contains(part)), "{picture}");
    }

    #[test]
    fn empty_board_shows_no_numbers() {
        for board in [begun(), Board::default()] {
            let picture = picture(&board, 100, 30, false);
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
        assert!(picture(&begun(), 100, 30, false).contains("no measurements yet"));
    }

    #[test]
    fn draw_fits_any_window() {
        for board in [Board::default(), begun(), running()] {
            for (width, height) in [(0, 0), (1, 1), (20, 5), (1, 100), (300, 1), (75, 21), (500, 200)] {
                let picture = picture(&board, width, height, true);
                assert_eq!(picture.lines().count(), usize::from(height), "{width}x{height}");
            }
        }
    }

    #[test]
    fn constant_and_extreme_values_are_charted() {
        let mut board = begun();
        for train_loss in [0.0, -3.0, 1e300, -1e300] {
            board.observe(&Event::Logged(&Logged { train_loss, ..Logged::default() }));
            let picture = picture(&board, 100, 30, false);
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }

    #[test]
    fn number_keeps_significant_digits() {
        for (x, text) in [
            (0.0, "0"),
            (3e-4, "3.00e-4"),
            (0.0125, "0.0125"),
            (2.345_678, "2.3457"),
            (-2.5, "-2.5000"),
            (39.1367, "39.14"),
            (146.26, "146.3"),
            (18_449.6, "18,450"),
            (-1234.0, "-1,234"),
            (1e20, "1.00e20"),
        ] {
            assert_eq!(number(x), text);
        }
    }
}
